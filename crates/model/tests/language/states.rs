//! Slots, pages and rooms: copies are exact, strangers' values do not matter, and what does not fit is refused.

use std::sync::Arc;

use furrow_model::backend::{Backend, BackendError, Inset, PAGE_TOKENS, Page, Plain, Room, Slot, Span, Want};
use furrow_model::cpu::{Cpu, OpenError};
use furrow_model::forward::{ForwardError, Request, Sequence, forward};
use furrow_model::kernels::Compute;
use furrow_model::sample::{Pick, Picked};

use crate::bits::{bits, run};
use crate::oracle::{Case, sequence};

/// A prompt run up to a point in slot 0, and the bits that the rest of it gives.
struct Fixture {
    case: Case,
    cpu: Cpu,
    first: Vec<u32>,
    rest: Vec<u32>,
    want: Vec<u32>,
}

impl Fixture {
    fn all() -> impl Iterator<Item = Self> {
        Case::all().map(|case| {
            let ids = case.ids("prompt_a");
            // Beyond a page where the prompt is that long, and in the middle of one.
            let cut = if ids.len() > 200 { 150 } else { ids.len() / 2 };
            let (mut cpu, mut own) = (case.open(), sequence(0));
            run(&mut cpu, &mut own, &ids[..cut]);
            let want = run(&mut cpu, &mut own, &ids[cut..]);
            let mut cpu = case.open();
            run(&mut cpu, &mut sequence(0), &ids[..cut]);
            Self { case, cpu, first: ids[..cut].to_vec(), rest: ids[cut..].to_vec(), want }
        })
    }

    /// The rest of the prompt, continued in some slot on some pages.
    #[track_caller]
    fn check(&mut self, slot: u32, pages: Vec<Page>) {
        let mut own = Sequence::new(Slot(slot), pages);
        own.advance(self.first.len());
        let got = run(&mut self.cpu, &mut own, &self.rest);
        assert!(got == self.want, "{} {:?}", self.case.name, self.case.compute);
    }

    /// Pages that the first part has filled.
    fn filled(&self) -> u32 {
        self.first.len().div_ceil(PAGE_TOKENS) as u32
    }
}

fn pages(numbers: impl IntoIterator<Item = u32>) -> Vec<Page> {
    numbers.into_iter().map(Page).collect()
}

#[test]
fn a_copied_slot_on_copied_pages_goes_on_as_the_original_does() {
    for mut fixture in Fixture::all() {
        fixture.cpu.copy_slot(Slot(0), Slot(3)).unwrap();
        for page in 0..fixture.filled() {
            fixture.cpu.copy_page(Page(page), Page(20 + page)).unwrap();
        }
        // The original goes on first and writes into its own pages.
        fixture.check(0, pages(0..8));
        fixture.check(3, pages(20..28));
    }
}

#[test]
fn a_fork_shares_the_pages_that_are_full() {
    for mut fixture in Fixture::all() {
        let full = (fixture.first.len() / PAGE_TOKENS) as u32;
        fixture.cpu.copy_slot(Slot(0), Slot(1)).unwrap();
        fixture.cpu.copy_page(Page(full), Page(30)).unwrap();
        let shared = pages((0..full).chain([30]).chain(24..29));
        fixture.check(1, shared);
        fixture.check(0, pages(0..8));
    }
}

#[test]
fn a_parked_sequence_comes_back_into_any_slot_and_pages() {
    for mut fixture in Fixture::all() {
        let filled = fixture.filled();
        let parked = park(&mut fixture.cpu, Slot(0), &pages(0..filled));
        let text = &fixture.case.weights.config.text;
        let bytes = 4 * (text.ssm_values() + text.conv_values());
        assert_eq!(parked.state.len() as u64, bytes);
        assert_eq!(parked.pages.len() as u64, 4 * text.kv_values() * u64::from(filled) * PAGE_TOKENS as u64);

        // Somebody else works in its place meanwhile.
        let other = fixture.case.ids("prompt_b");
        run(&mut fixture.cpu, &mut sequence(0), &other);
        fixture.cpu.clear(Slot(0)).unwrap();
        let places = pages((10..10 + filled).rev());
        assert_eq!(fixture.cpu.parked_bytes(filled), (parked.state.len() + parked.pages.len()) as u64);
        fixture.cpu.restore(&parked.clone().parked(), Slot(2), &places).unwrap();
        assert!(park(&mut fixture.cpu, Slot(2), &places) == parked, "{}", fixture.case.name);
        fixture.check(2, places.into_iter().chain(pages(24..32)).collect());
    }
}

#[test]
fn a_parked_sequence_comes_back_into_another_backend() {
    for mut fixture in Fixture::all() {
        let parked = fixture.cpu.park(Slot(0), &pages(0..fixture.filled())).unwrap().unwrap();
        fixture.cpu = fixture.case.open_with(1);
        fixture.cpu.restore(&parked, Slot(1), &pages(0..fixture.filled())).unwrap();
        fixture.check(1, pages(0..8));
    }
}

#[test]
fn a_used_slot_starts_anew() {
    for case in Case::all() {
        let (a, b) = (case.ids("prompt_a"), case.ids("prompt_b"));
        let want = run(&mut case.open(), &mut sequence(0), &b);
        let mut cpu = case.open();
        run(&mut cpu, &mut sequence(0), &a);
        assert!(run(&mut cpu, &mut sequence(0), &b) == want, "{}: start 0 clears the slot", case.name);
        let fresh = park(&mut case.open(), Slot(0), &[]);
        cpu.clear(Slot(0)).unwrap();
        assert!(park(&mut cpu, Slot(0), &[]) == fresh, "{}: a cleared slot is a fresh one", case.name);
    }
}

/// A state as the backend parks it.
fn park(cpu: &mut Cpu, slot: Slot, pages: &[Page]) -> Plain {
    Plain::of(&cpu.park(slot, pages).unwrap().unwrap()).clone()
}

fn all_nan(parked: &Plain) -> Plain {
    let nan = |bytes: &[u8]| f32::NAN.to_le_bytes().repeat(bytes.len() / 4);
    Plain { state: nan(&parked.state), pages: nan(&parked.pages) }
}

#[test]
fn not_a_number_ends_one_sequence_and_touches_no_other() {
    for case in Case::all() {
        let (a, b) = (case.ids("prompt_a"), case.ids("prompt_b"));
        let want = run(&mut case.open(), &mut sequence(0), &b);
        let mut cpu = case.open();
        let sick: Vec<Page> = pages(8..16);
        let mut ill = sequence(1);
        run(&mut cpu, &mut ill, &a);
        let parked = park(&mut cpu, Slot(1), &sick);
        cpu.restore(&all_nan(&parked).parked(), Slot(1), &sick).unwrap();

        // It stands between two healthy ones.
        let (before, after) = (sequence(0), sequence(2));
        let batch = [
            before.span(&b, &[], Want::All),
            ill.span(&a[..3], &[], Want::Last),
            after.span(&b, &[], Want::All),
        ];
        cpu.run(&batch).unwrap();
        let rows = b.len() as u32;
        let healthy = |cpu: &mut Cpu, first: u32| -> Vec<u32> {
            (first..first + rows).flat_map(|row| bits(cpu.logits(row).unwrap())).collect()
        };
        assert!(healthy(&mut cpu, 0) == want, "{}: the one before", case.name);
        assert!(healthy(&mut cpu, rows + 1) == want, "{}: the one after", case.name);
        let greedy = |row| Pick {
            row,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            allowed: None,
            uniform: 0.0,
        };
        let picked = cpu.sample(&[greedy(0), greedy(rows), greedy(rows + 1)]).unwrap();
        assert!(matches!(picked[..], [Picked::Token(_), Picked::NotFinite, Picked::Token(_)]), "{picked:?}");

        // Whoever gets its slot and pages next does not notice.
        let mut next = Sequence::new(Slot(1), sick);
        assert!(run(&mut cpu, &mut next, &b) == want, "{}: the next owner", case.name);
    }
}

#[test]
fn new_weights_of_the_same_shape_take_over_and_the_old_ones_come_back() {
    let case = Case::load("dense", Compute::Float32);
    let other = Case::load("moe", Compute::Float32);
    let mut cpu = case.open();
    let same = Case::load("dense", Compute::Float32).weights;
    let old = cpu.replace_weights(same).unwrap();
    assert!(Arc::ptr_eq(&old, &case.weights));
    assert!(matches!(cpu.replace_weights(other.weights), Err(OpenError::OtherModel { .. })));
    assert!(!Arc::ptr_eq(cpu.weights(), &case.weights));
}

/// What a batch of one span is answered, as text.
#[track_caller]
fn refused(cpu: &mut Cpu, spans: &[Span<'_>], want: &str) {
    let before = park(cpu, Slot(0), &[]);
    let got = cpu.run(spans).unwrap_err().to_string();
    assert_eq!(got, want);
    assert!(park(cpu, Slot(0), &[]) == before, "a refused batch changes nothing");
}

#[test]
fn batches_that_do_not_fit_are_refused_whole() {
    let case = Case::load("dense", Compute::Float32);
    let room = Room { slots: 2, pages: 3, rows_max: 8, logits_max: 2, features: 1, parked_bytes: 0 };
    let mut cpu = Cpu::open(Arc::clone(&case.weights), room, 1, Compute::Float32).unwrap();
    let all = pages(0..3);
    let own =
        |slot, pages: &'static [u32]| Sequence::new(Slot(slot), pages.iter().copied().map(Page).collect());
    let (good, far, short) = (own(0, &[0, 1]), own(2, &[0]), own(1, &[]));
    run(&mut cpu, &mut own(0, &[0, 1]), &[5, 6]);
    cpu.run(&[]).unwrap();
    let mut span = good.span(&[1; 9], &[], Want::Nothing);
    refused(&mut cpu, &[span], "rows of a batch: 9 asked for, 8 there are");
    span.tokens = &[1; 3];
    span.want = Want::All;
    refused(&mut cpu, &[span], "rows whose logits are wanted: 3 asked for, 2 there are");
    let far = far.span(&[1], &[], Want::Nothing);
    span.want = Want::Last;
    refused(&mut cpu, &[span, far], "state slots: 3 asked for, 2 there are");
    refused(
        &mut cpu,
        &[span, short.span(&[1], &[], Want::Last)],
        "positions of a span's pages: 1 asked for, 0 there are",
    );
    let start = Span { start: 126, ..span };
    refused(&mut cpu, &[start], "positions of a span's pages: 129 asked for, 128 there are");
    let beyond = own(1, &[3]);
    refused(&mut cpu, &[span, beyond.span(&[1], &[], Want::Last)], "KV pages: 4 asked for, 3 there are");
    let unknown = Span { tokens: &[1, 512, 2], pages: &all, ..span };
    let rows = case.weights.text.embeddings.rows;
    refused(
        &mut cpu,
        &[unknown],
        &format!(
            "token id 512 at index 1 has no row in the embedding table of {rows} rows and no image row stands in its place"
        ),
    );
}

#[test]
fn features_are_counted_and_their_rows_checked() {
    let case = Case::load("dense", Compute::Float32);
    let mut cpu = case.open();
    let hidden = case.weights.config.text.hidden;
    let feature = cpu.hold_rows(&vec![0.5; 2 * hidden]).unwrap();
    let full = cpu.hold_rows(&vec![0.5; hidden]).unwrap_err();
    assert_eq!(full.to_string(), "tile features: 1 asked for, 0 there are");
    let own = sequence(0);
    let inset = [Inset { at: 0, len: 2, feature, row: 1 }];
    let span = own.span(&[900, 900, 1], &inset, Want::Last);
    refused(&mut cpu, &[span], "rows of a tile feature: 3 asked for, 2 there are");
    let inset = [Inset { at: 2, len: 2, feature, row: 0 }];
    refused(
        &mut cpu,
        &[own.span(&[1, 1, 900], &inset, Want::Last)],
        "tokens of a span with an inset: 4 asked for, 3 there are",
    );
    cpu.release(&[feature]);
    let inset = [Inset { at: 0, len: 1, feature, row: 0 }];
    refused(
        &mut cpu,
        &[own.span(&[900], &inset, Want::Last)],
        "rows of a tile feature: 1 asked for, 0 there are",
    );
    cpu.hold_rows(&vec![0.5; hidden]).unwrap();
}

#[test]
fn rooms_that_cannot_be_are_refused() {
    let case = Case::load("dense", Compute::Float32);
    let good = Room { slots: 1, pages: 1, rows_max: 1, logits_max: 1, features: 0, parked_bytes: 0 };
    let open = |room| Cpu::open(Arc::clone(&case.weights), room, 1, Compute::Float32).map(|_| ());
    open(good).unwrap();
    let none = |room: Room, what: &str| match open(room) {
        Err(OpenError::NoRoom { what: got }) => assert_eq!(got, what),
        other => panic!("{other:?}"),
    };
    none(Room { slots: 0, ..good }, "state slots");
    none(Room { rows_max: 0, ..good }, "rows");
    none(Room { logits_max: 0, ..good }, "rows of logits");
    // 4.3e9 slots of 57 KB are 245 TB: more than any machine has, and more than half of what 47 bits address.
    let text = &case.weights.config.text;
    let states = u64::from(u32::MAX) * 4 * (text.ssm_values() + text.conv_values());
    match open(Room { slots: u32::MAX, ..good }) {
        Err(OpenError::Full { asked, available }) => {
            assert_eq!(asked.ssm + asked.conv, states);
            assert!(available < states);
        }
        // Where the system does not say what is free.
        Err(OpenError::NoMemory { part: "the state of all slots", bytes, .. }) => assert_eq!(bytes, states),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sequences_that_cannot_be_run_are_refused() {
    #[track_caller]
    fn check(request: Request<'_>, want: &str) {
        let case = Case::load("dense", Compute::Float32);
        let error = forward(&mut case.open(), &request).unwrap_err();
        let text = match &error {
            ForwardError::Backend(source) => source.to_string(),
            other => other.to_string(),
        };
        assert_eq!(text, want);
    }
    let ids = [1; 600];
    let request = Request { input_ids: &ids[..3], ..Request::default() };
    check(Request { input_ids: &[], ..request }, "no input ids: give at least one");
    check(
        Request { segments: &[1, 1], ..request },
        "segments [1, 1] add up to 2, but there are 3 input ids; each must be at least 1",
    );
    check(
        Request { segments: &[3, 0], ..request },
        "segments [3, 0] add up to 3, but there are 3 input ids; each must be at least 1",
    );
    let tile = furrow_model::vision::Tile { pixels: Vec::new(), hash: [0; 32] };
    check(Request { tiles: &[tile], ..request }, &BackendError::NoVision.to_string());
    // 32 pages are 2,048 positions.
    check(Request { decode: 2047, ..request }, "positions of all pages: 2049 asked for, 2048 there are");
    check(
        Request { decode: usize::MAX, ..request },
        "18446744073709551615 rows of 512 logits do not fit into memory",
    );
}
