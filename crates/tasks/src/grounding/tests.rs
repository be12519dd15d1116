//! Sets written by the tests, and how they load.

use std::fs::File;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use ::parquet::basic::Compression;
use ::parquet::data_type::{ByteArray, ByteArrayType, DoubleType};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use furrow_rollout::{EndKind, Evidence};

use super::*;
use crate::{EndFacts, SourceFile, TaskSet, TasksFile};

const SCHEMA: &str = "message schema {
    optional group image { optional binary bytes; optional binary path (UTF8); }
    optional binary instruction (UTF8);
    optional group bbox (LIST) { repeated group list { optional double element; } }
    optional binary bucket (UTF8);
}";

struct SampleRow {
    picture: Option<Vec<u8>>,
    instruction: &'static str,
    bbox: Vec<f64>,
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let picture = image::RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, 99]));
    picture.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

fn sample(width: u32, height: u32, bbox: [f64; 4]) -> SampleRow {
    SampleRow { picture: Some(png(width, height)), instruction: "Click it.", bbox: bbox.to_vec() }
}

/// Writes groups of rows in the published layout: nested, optional, compressed with Snappy.
fn write(path: &Path, groups: &[Vec<SampleRow>]) {
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut writer =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let mut texts = |values: Vec<Option<Vec<u8>>>, deepest: i16| {
            let mut column = group.next_column().unwrap().unwrap();
            let levels: Vec<i16> =
                values.iter().map(|value| if value.is_some() { deepest } else { deepest - 1 }).collect();
            let values: Vec<ByteArray> = values.into_iter().flatten().map(ByteArray::from).collect();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
            column.close().unwrap();
        };
        texts(rows.iter().map(|row| row.picture.clone()).collect(), 2);
        texts(rows.iter().map(|_| None).collect(), 2);
        texts(rows.iter().map(|row| Some(row.instruction.as_bytes().to_vec())).collect(), 1);
        let mut column = group.next_column().unwrap().unwrap();
        let numbers: Vec<f64> = rows.iter().flat_map(|row| row.bbox.clone()).collect();
        let repeated: Vec<i16> =
            rows.iter().flat_map(|row| (0..row.bbox.len()).map(|n| i16::from(n > 0))).collect();
        column
            .typed::<DoubleType>()
            .write_batch(&numbers, Some(&vec![3; numbers.len()]), Some(&repeated))
            .unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let buckets: Vec<ByteArray> = rows.iter().map(|_| ByteArray::from("calendars")).collect();
        column.typed::<ByteArrayType>().write_batch(&buckets, Some(&vec![1; rows.len()]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn loaded(path: &Path, change: impl FnOnce(&mut SourceFile)) -> Result<TaskSet, Vec<String>> {
    let mut source = SourceFile { suite: "clicks".into(), path: path.to_owned(), ..SourceFile::default() };
    change(&mut source);
    let file = TasksFile { source: vec![source], ..TasksFile::default() };
    crate::load(&file.check(Path::new("/"))?)
}

#[track_caller]
fn refused(result: Result<TaskSet, Vec<String>>, want: &str) {
    let problems = result.map(|set| set.specs().len()).unwrap_err();
    assert!(problems.iter().any(|problem| problem.contains(want)), "{want:?} not in {problems:?}");
}

fn pictures(set: &TaskSet) -> Arc<PictureSet> {
    match &set.sites()[0].root {
        SiteRoot::Pictures(pictures) => pictures.clone(),
        other => panic!("{other:?}"),
    }
}

/// The reward of a click at this point.
fn click(spec: &TaskSpec, x: f64, y: f64) -> f32 {
    let probe = json!({ "done": true, "click": { "x": x, "y": y } }).to_string();
    let evidence = Evidence { probe_json: Some(probe), ..Evidence::default() };
    let facts = EndFacts { end: EndKind::Done, steps: 1, max_steps: 1 };
    spec.scorer.score(&evidence, &facts).unwrap().reward.unwrap()
}

#[test]
fn rows_of_several_groups_and_files_become_tasks_with_their_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = [(100, 80), (40, 30), (64, 64), (200, 50)];
    let row = |index: usize| {
        let (width, height) = sizes[index];
        sample(width, height, [0.1, 0.2, 0.5, 0.6])
    };
    write(&folder.path().join("test-00000-of-00002.parquet"), &[vec![row(0), row(1)], vec![row(2)]]);
    write(&folder.path().join("test-00001-of-00002.parquet"), &[vec![row(3)]]);
    let set = loaded(folder.path(), |_| {}).unwrap();
    let ids: Vec<_> = set.specs().iter().map(|spec| spec.task.task_id.as_str()).collect();
    assert_eq!(ids, ["row-000000", "row-000001", "row-000002", "row-000003"]);
    let pictures = pictures(&set);
    for (index, (spec, (width, height))) in set.specs().iter().zip(sizes).enumerate() {
        let task = &spec.task;
        assert_eq!((task.viewport, task.max_steps), (Size::new(width, height), 1));
        assert_eq!(task.start_url, format!("http://clicks.test/{index:06}.html"));
        assert_eq!(task.goal.as_deref(), Some("Click it."));
        let width_px = f64::from(width);
        let height_px = f64::from(height);
        assert_eq!(click(spec, width_px * 0.3, height_px * 0.4), 1.0);
        assert_eq!(click(spec, width_px * 0.05, height_px * 0.4), 0.0);
        assert_eq!(click(spec, width_px * 0.3, height_px * 0.7), 0.0);
        assert!(spec.json.contains(r#""bucket":"calendars""#), "{}", spec.json);
        assert_eq!(
            pictures.read(&format!("{index:06}.png")).unwrap().unwrap(),
            png(width, height),
            "{index}"
        );
        let page = String::from_utf8(pictures.read(&format!("{index:06}.html")).unwrap().unwrap()).unwrap();
        assert!(page.contains(&format!("width:{width}px;height:{height}px")), "{page}");
        assert!(!page.contains("Click it"), "the page does not show the instruction");
    }
    for name in ["000004.html", "000000.jpeg", "0.html", "x.html", "000000", "000000.html.html", ""] {
        assert_eq!(pictures.read(name).unwrap(), None, "{name}");
    }
    assert_eq!(loaded(folder.path(), |_| {}).unwrap().fingerprint(), set.fingerprint());
}

#[test]
fn boxes_are_read_in_each_published_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.parquet");
    let reward_at = |bbox: [f64; 4], boxes: &str, x: f64, y: f64| {
        write(&path, &[vec![sample(200, 100, bbox)]]);
        loaded(&path, |source| source.boxes = boxes.to_owned()).map(|set| click(&set.specs()[0], x, y))
    };
    let table = [
        ([0.1, 0.2, 0.5, 0.6], "auto", Ok((40.0, 40.0))),
        ([0.1, 0.2, 0.5, 0.6], "shares", Ok((40.0, 40.0))),
        ([20.0, 20.0, 100.0, 60.0], "auto", Ok((40.0, 40.0))),
        ([20.0, 20.0, 100.0, 60.0], "pixels", Ok((40.0, 40.0))),
        ([100.0, 20.0, 50.0, 40.0], "pixel_sizes", Ok((120.0, 40.0))),
        ([0.0, 0.0, 1.0, 1.0], "pixels", Ok((0.5, 0.5))),
        ([100.0, 20.0, 50.0, 40.0], "auto", Err("is not a box inside the picture")),
        ([20.0, 20.0, 100.0, 60.0], "shares", Err("is not a box inside the picture")),
        ([0.5, 0.5, 0.5, 0.6], "auto", Err("is not a box inside the picture")),
        ([0.0, 0.0, 300.0, 60.0], "auto", Err("it must lie in the picture of 200 x 100")),
        ([-9.0, 0.0, 30.0, 60.0], "auto", Err("is not a box inside the picture")),
        ([f64::NAN, 0.0, 30.0, 60.0], "auto", Err("bbox: ")),
        ([f64::INFINITY, 0.0, 30.0, 60.0], "auto", Err("bbox: ")),
    ];
    for (bbox, boxes, want) in table {
        match want {
            Ok((x, y)) => {
                assert_eq!(reward_at(bbox, boxes, x, y), Ok(1.0), "{bbox:?} {boxes}");
                assert_eq!(reward_at(bbox, boxes, 199.0, 99.0), Ok(0.0), "{bbox:?} {boxes}");
            }
            Err(why) => {
                let problems = reward_at(bbox, boxes, 0.0, 0.0).unwrap_err();
                assert!(
                    problems[0].contains(why) && problems[0].contains("row 0 of group 0"),
                    "{problems:?}"
                );
            }
        }
    }
    write(&path, &[vec![SampleRow { bbox: vec![0.1, 0.2, 0.3], ..sample(20, 20, [0.0; 4]) }]]);
    refused(loaded(&path, |_| {}), "bbox: [0.1,0.2,0.3] is not a box; use a list of four numbers");
}

#[test]
fn a_large_picture_is_scaled_down_with_its_box() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.parquet");
    write(&path, &[vec![sample(8192, 1024, [4096.0, 512.0, 8192.0, 1024.0])]]);
    let set = loaded(&path, |_| {}).unwrap();
    assert_eq!(set.specs()[0].task.viewport, Size::new(4096, 512));
    assert_eq!((click(&set.specs()[0], 2100.0, 300.0), click(&set.specs()[0], 2000.0, 300.0)), (1.0, 0.0));
}

#[test]
fn a_bad_set_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.parquet");
    let with = |rows: Vec<SampleRow>| {
        write(&path, &[rows]);
        loaded(&path, |_| {})
    };
    let good = || sample(20, 20, [0.1, 0.1, 0.2, 0.2]);
    refused(with(vec![good(), SampleRow { picture: None, ..good() }]), "row 1 of group 0");
    refused(with(vec![SampleRow { picture: Some(b"<svg/>".to_vec()), ..good() }]), "image: is not a picture");
    refused(
        with(vec![SampleRow { picture: Some(b"GIF89a..........".to_vec()), ..good() }]),
        "use PNG or JPEG",
    );
    refused(
        with(vec![SampleRow { picture: Some(png(20, 20)[..20].to_vec()), ..good() }]),
        "is not a complete picture",
    );
    refused(with(vec![SampleRow { instruction: "", ..good() }]), "instruction: \"\" has 0 bytes");
    // A header that declares 60000 x 60000 pixels, which are never decoded.
    let mut vast = Cursor::new(Vec::new());
    image::RgbImage::new(20, 20).write_to(&mut vast, image::ImageFormat::Jpeg).unwrap();
    let mut vast = vast.into_inner();
    let frame = vast.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    vast[frame + 5..frame + 9].copy_from_slice(&[0xea, 0x60, 0xea, 0x60]);
    refused(with(vec![SampleRow { picture: Some(vast), ..good() }]), "60000 x 60000 pixels");

    std::fs::write(&path, "PAR1 nothing PAR1").unwrap();
    refused(loaded(&path, |_| {}), "is not a Parquet file");
    std::fs::write(&path, "").unwrap();
    refused(loaded(&path, |_| {}), "is not a Parquet file");
    write(&path, &[vec![good()]]);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    refused(loaded(&path, |_| {}), "is not a Parquet file");
    write(&path, &[]);
    refused(loaded(&path, |_| {}), "contains no row");
    refused(loaded(&path, |source| source.answers = Some("x".into())), "only a task file of WebVoyager's");
}

/// A damaged file yields a problem or another set, never a panic; the failing case prints its seed.
#[test]
fn no_damage_breaks_the_reader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.parquet");
    write(&path, &[vec![sample(20, 20, [0.1, 0.1, 0.2, 0.2]), sample(30, 20, [0.1, 0.1, 0.2, 0.2])]]);
    let whole = std::fs::read(&path).unwrap();
    for seed in 0..300_u64 {
        let mut bytes = whole.clone();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for _ in 0..3 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = (state as usize) % bytes.len();
            bytes[at] = (state >> 32) as u8;
        }
        std::fs::write(&path, bytes).unwrap();
        if let Ok(set) = loaded(&path, |_| {}) {
            drop(pictures(&set).read("000001.png"));
        }
    }
}

#[test]
fn lines_name_pictures_beside_them_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("set");
    std::fs::create_dir_all(home.join("images")).unwrap();
    std::fs::write(home.join("images/a.png"), png(50, 40)).unwrap();
    std::fs::write(folder.path().join("secret.png"), png(50, 40)).unwrap();
    let path = home.join("metadata.jsonl");
    let line = |image: Value| {
        json!({ "image": image, "instruction": "Click.", "bbox": [5, 5, 20, 20], "resolution": [50, 40] })
            .to_string()
    };
    std::fs::write(&path, [line(json!("images/a.png")), line(json!({ "path": "images/a.png" }))].join("\n"))
        .unwrap();
    let set = loaded(&path, |_| {}).unwrap();
    assert_eq!(set.specs().len(), 2);
    assert_eq!((click(&set.specs()[1], 6.0, 6.0), click(&set.specs()[1], 30.0, 6.0)), (1.0, 0.0));
    assert_eq!(pictures(&set).read("000001.png").unwrap().unwrap(), png(50, 40));
    for (image, why) in [
        (json!("images/none.png"), "metadata.jsonl:2: image: \"images/none.png\" cannot be read"),
        (json!("../secret.png"), "lies outside the file's folder"),
        (json!("/etc/hostname"), "lies outside the file's folder"),
        (json!(7), "metadata.jsonl:2: image: is missing"),
        (json!("metadata.jsonl"), "is not a picture of a supported format"),
    ] {
        std::fs::write(&path, [line(json!("images/a.png")), line(image)].join("\n")).unwrap();
        refused(loaded(&path, |_| {}), why);
    }
}

/// The three published layouts as pyarrow writes them; skipped with a message if Python is not
/// available.
#[test]
fn files_of_pyarrow_are_read() {
    let Some(python) = std::env::var_os("FURROW_TEST_PYTHON") else {
        println!("skipped: FURROW_TEST_PYTHON does not name a Python with pyarrow");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.png"), png(120, 90)).unwrap();
    let script = r#"
import pyarrow as pa, pyarrow.parquet as pq
png = open("a.png", "rb").read()
image = [{"bytes": png, "path": "a.png"}] * 3
words = ["one", "two", "three"]
share = [[0.25, 0.5, 0.5, 1.0]] * 3
pixel = [[30, 45, 60, 90]] * 3
kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
def write(name, columns, **how):
    pq.write_table(pa.table({key: (pa.array(value, kind) if key == "image" else value) for key, value in columns.items()}), name, **how)
write("webclick.parquet", {"image": image, "instruction": words, "bbox": share, "bucket": ["calendars"] * 3})
write("screenspot.parquet", {"file_name": ["a.png"] * 3, "bbox": share, "instruction": words, "data_type": ["icon"] * 3, "data_source": ["windows"] * 3, "image": image}, row_group_size=2)
write("groundui.parquet", {"image": image, "instruction": words, "bbox": pixel, "resolution": [[120, 90]] * 3, "source": ["mind2web"] * 3, "platform": ["web"] * 3}, compression="zstd", data_page_version="2.0")
write("plain.parquet", {"image": image, "instruction": words, "bbox": share}, compression="none", use_dictionary=False)
"#;
    let ran =
        std::process::Command::new(python).arg("-c").arg(script).current_dir(folder.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    for (name, kept) in [
        ("webclick", r#""bucket":"calendars""#),
        ("screenspot", r#""data_source":"windows""#),
        ("groundui", r#""resolution":[120,90],"source":"mind2web""#),
        ("plain", r#""instruction":"three""#),
    ] {
        let set = loaded(&folder.path().join(format!("{name}.parquet")), |_| {}).unwrap();
        assert_eq!(set.specs().len(), 3, "{name}");
        let last = &set.specs()[2];
        assert_eq!(
            (last.task.goal.as_deref(), last.task.viewport),
            (Some("three"), Size::new(120, 90)),
            "{name}"
        );
        assert!(last.json.contains(kept), "{name}: {}", last.json);
        assert_eq!((click(last, 45.0, 60.0), click(last, 20.0, 60.0)), (1.0, 0.0), "{name}");
        assert_eq!(pictures(&set).read("000002.png").unwrap().unwrap(), png(120, 90), "{name}");
    }
}
