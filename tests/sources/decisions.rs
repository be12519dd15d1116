//! Decisions are numbered without gaps and repetitions: other pages name them by number.

use std::fs;

#[test]
fn each_decision_has_a_number_of_its_own() {
    let entries = fs::read_dir("docs/decisions").unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.sort();
    for (index, page) in pages.iter().enumerate() {
        let number = index + 1;
        let name = page.file_name().unwrap().to_string_lossy();
        assert!(name.starts_with(&format!("{number:04}-")), "{name} should be number {number}");
        let text = fs::read_to_string(page).unwrap();
        assert!(text.starts_with(&format!("# {number}. ")), "{name}: its title does not begin with {number}");
    }
}
