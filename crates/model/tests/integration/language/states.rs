//! Slots, pages and capacity: copies are exact, other sequences' values do not matter, and what
//! exceeds the capacity is refused.

use std::sync::Arc;

use furrow_model::backend::{
    Backend, BackendCapacity, BackendError, HostState, ImageInset, LogitRows, PAGE_TOKENS, Page,
    SequenceSpan, Slot,
};
use furrow_model::cpu::{CpuBackend, CpuOpenError};
use furrow_model::forward::{ForwardError, ForwardRequest, Sequence, forward};
use furrow_model::kernels::ProductPrecision;
use furrow_model::sample::{SampleOutcome, SampleRequest};

use crate::language::bits::{bits, run};
use crate::language::oracle::{OracleCase, sequence};

/// A prompt that ran up to a point in slot 0, and the bits that the rest of it must give.
struct StateFixture {
    case: OracleCase,
    cpu: CpuBackend,
    first: Vec<u32>,
    rest: Vec<u32>,
    want: Vec<u32>,
}

impl StateFixture {
    fn all() -> impl Iterator<Item = Self> {
        OracleCase::all().map(|case| {
            let ids = case.ids("prompt_a");
            // After the first page if the prompt is long enough, and in the middle of a page.
            let cut = if ids.len() > 200 { 150 } else { ids.len() / 2 };
            let mut cpu = case.open();
            let mut own = sequence(0);
            run(&mut cpu, &mut own, &ids[..cut]);
            let want = run(&mut cpu, &mut own, &ids[cut..]);
            let mut cpu = case.open();
            run(&mut cpu, &mut sequence(0), &ids[..cut]);
            Self { case, cpu, first: ids[..cut].to_vec(), rest: ids[cut..].to_vec(), want }
        })
    }

    /// Checks the rest of the prompt, continued in some slot on some pages.
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
    for mut fixture in StateFixture::all() {
        fixture.cpu.copy_slot(Slot(0), Slot(3)).unwrap();
        for page in 0..fixture.filled() {
            fixture.cpu.copy_page(Page(page), Page(20 + page)).unwrap();
        }
        // The original continues first and writes to its own pages.
        fixture.check(0, pages(0..8));
        fixture.check(3, pages(20..28));
    }
}

#[test]
fn a_fork_shares_the_pages_that_are_full() {
    for mut fixture in StateFixture::all() {
        let full = (fixture.first.len() / PAGE_TOKENS) as u32;
        fixture.cpu.copy_slot(Slot(0), Slot(1)).unwrap();
        fixture.cpu.copy_page(Page(full), Page(30)).unwrap();
        let shared = pages((0..full).chain([30]).chain(24..29));
        fixture.check(1, shared);
        fixture.check(0, pages(0..8));
    }
}

#[test]
fn an_offloaded_sequence_is_restored_into_any_slot_and_pages() {
    for mut fixture in StateFixture::all() {
        let filled = fixture.filled();
        let offloaded = offload(&mut fixture.cpu, Slot(0), &pages(0..filled));
        let text = &fixture.case.weights.config.text;
        let bytes = 4 * (text.ssm_values() + text.conv_values());
        assert_eq!(offloaded.state.len() as u64, bytes);
        assert_eq!(
            offloaded.pages.len() as u64,
            4 * text.kv_values() * u64::from(filled) * PAGE_TOKENS as u64
        );

        // Another sequence uses the slot and the pages meanwhile.
        let other = fixture.case.ids("prompt_b");
        run(&mut fixture.cpu, &mut sequence(0), &other);
        fixture.cpu.clear(Slot(0)).unwrap();
        let other_pages = pages((10..10 + filled).rev());
        assert_eq!(
            fixture.cpu.offloaded_bytes(filled),
            (offloaded.state.len() + offloaded.pages.len()) as u64
        );
        fixture.cpu.restore(&offloaded.clone().into_offloaded(), Slot(2), &other_pages).unwrap();
        assert!(offload(&mut fixture.cpu, Slot(2), &other_pages) == offloaded, "{}", fixture.case.name);
        fixture.check(2, other_pages.into_iter().chain(pages(24..32)).collect());
    }
}

#[test]
fn an_offloaded_sequence_is_restored_into_another_backend() {
    for mut fixture in StateFixture::all() {
        let offloaded = fixture.cpu.offload(Slot(0), &pages(0..fixture.filled())).unwrap().unwrap();
        fixture.cpu = fixture.case.open_with(1);
        fixture.cpu.restore(&offloaded, Slot(1), &pages(0..fixture.filled())).unwrap();
        fixture.check(1, pages(0..8));
    }
}

#[test]
fn a_used_slot_starts_anew() {
    for case in OracleCase::all() {
        let a = case.ids("prompt_a");
        let b = case.ids("prompt_b");
        let want = run(&mut case.open(), &mut sequence(0), &b);
        let mut cpu = case.open();
        run(&mut cpu, &mut sequence(0), &a);
        assert!(
            run(&mut cpu, &mut sequence(0), &b) == want,
            "{}: start 0 does not clear the slot",
            case.name
        );
        let fresh = offload(&mut case.open(), Slot(0), &[]);
        cpu.clear(Slot(0)).unwrap();
        assert!(
            offload(&mut cpu, Slot(0), &[]) == fresh,
            "{}: a cleared slot differs from a fresh one",
            case.name
        );
    }
}

/// A state as the backend offloads it.
fn offload(cpu: &mut CpuBackend, slot: Slot, pages: &[Page]) -> HostState {
    HostState::of(&cpu.offload(slot, pages).unwrap().unwrap()).clone()
}

fn all_nan(offloaded: &HostState) -> HostState {
    let nan = |bytes: &[u8]| f32::NAN.to_le_bytes().repeat(bytes.len() / 4);
    HostState { state: nan(&offloaded.state), pages: nan(&offloaded.pages) }
}

#[test]
fn not_a_number_ends_one_sequence_and_touches_no_other() {
    for case in OracleCase::all() {
        let a = case.ids("prompt_a");
        let b = case.ids("prompt_b");
        let want = run(&mut case.open(), &mut sequence(0), &b);
        let mut cpu = case.open();
        let sick: Vec<Page> = pages(8..16);
        let mut ill = sequence(1);
        run(&mut cpu, &mut ill, &a);
        let offloaded = offload(&mut cpu, Slot(1), &sick);
        cpu.restore(&all_nan(&offloaded).into_offloaded(), Slot(1), &sick).unwrap();

        // It is between two healthy ones.
        let before = sequence(0);
        let after = sequence(2);
        let batch = [
            before.span(&b, &[], LogitRows::All),
            ill.span(&a[..3], &[], LogitRows::Last),
            after.span(&b, &[], LogitRows::All),
        ];
        cpu.run(&batch).unwrap();
        let rows = b.len() as u32;
        let healthy = |cpu: &mut CpuBackend, first: u32| -> Vec<u32> {
            (first..first + rows).flat_map(|row| bits(cpu.logits(row).unwrap())).collect()
        };
        assert!(healthy(&mut cpu, 0) == want, "{}: the one before", case.name);
        assert!(healthy(&mut cpu, rows + 1) == want, "{}: the one after", case.name);
        let greedy = |row| SampleRequest {
            row,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            allowed: None,
            uniform: 0.0,
        };
        let picked = cpu.sample(&[greedy(0), greedy(rows), greedy(rows + 1)]).unwrap();
        assert!(
            matches!(
                picked[..],
                [SampleOutcome::Token(_), SampleOutcome::NotFinite, SampleOutcome::Token(_)]
            ),
            "{picked:?}"
        );

        // The next sequence in its slot and pages is not affected.
        let mut next = Sequence::new(Slot(1), sick);
        assert!(run(&mut cpu, &mut next, &b) == want, "{}: the next owner", case.name);
    }
}

#[test]
fn new_weights_of_the_same_shape_take_over_and_the_old_ones_come_back() {
    let case = OracleCase::load("dense", ProductPrecision::Float32);
    let other = OracleCase::load("moe", ProductPrecision::Float32);
    let mut cpu = case.open();
    let same = OracleCase::load("dense", ProductPrecision::Float32).weights;
    let old = cpu.replace_weights(same).unwrap();
    assert!(Arc::ptr_eq(&old, &case.weights));
    assert!(matches!(cpu.replace_weights(other.weights), Err(CpuOpenError::OtherModel { .. })));
    assert!(!Arc::ptr_eq(cpu.weights(), &case.weights));
}

/// Checks the error, as text, for this batch.
#[track_caller]
fn refused(cpu: &mut CpuBackend, spans: &[SequenceSpan<'_>], want: &str) {
    let before = offload(cpu, Slot(0), &[]);
    let got = cpu.run(spans).unwrap_err().to_string();
    assert_eq!(got, want);
    assert!(offload(cpu, Slot(0), &[]) == before, "a refused batch changed the state");
}

#[test]
fn batches_that_do_not_fit_are_refused_whole() {
    let case = OracleCase::load("dense", ProductPrecision::Float32);
    let capacity =
        BackendCapacity { slots: 2, pages: 3, rows_max: 8, logits_max: 2, features: 1, offload_bytes: 0 };
    let mut cpu =
        CpuBackend::open(Arc::clone(&case.weights), capacity, 1, ProductPrecision::Float32).unwrap();
    let all = pages(0..3);
    let own =
        |slot, pages: &'static [u32]| Sequence::new(Slot(slot), pages.iter().copied().map(Page).collect());
    let good = own(0, &[0, 1]);
    let far = own(2, &[0]);
    let short = own(1, &[]);
    run(&mut cpu, &mut own(0, &[0, 1]), &[5, 6]);
    cpu.run(&[]).unwrap();
    let mut span = good.span(&[1; 9], &[], LogitRows::Nothing);
    refused(&mut cpu, &[span], "rows of a batch: 9 requested, 8 available");
    span.tokens = &[1; 3];
    span.want = LogitRows::All;
    refused(&mut cpu, &[span], "rows with logits: 3 requested, 2 available");
    let far = far.span(&[1], &[], LogitRows::Nothing);
    span.want = LogitRows::Last;
    refused(&mut cpu, &[span, far], "state slots: 3 requested, 2 available");
    refused(
        &mut cpu,
        &[span, short.span(&[1], &[], LogitRows::Last)],
        "positions of a span's pages: 1 requested, 0 available",
    );
    let start = SequenceSpan { start: 126, ..span };
    refused(&mut cpu, &[start], "positions of a span's pages: 129 requested, 128 available");
    let beyond = own(1, &[3]);
    refused(&mut cpu, &[span, beyond.span(&[1], &[], LogitRows::Last)], "KV pages: 4 requested, 3 available");
    let unknown = SequenceSpan { tokens: &[1, 512, 2], pages: &all, ..span };
    let rows = case.weights.text.embeddings.rows;
    refused(
        &mut cpu,
        &[unknown],
        &format!(
            "token id 512 at index 1 has no row in the embedding table of {rows} rows and no image row replaces it"
        ),
    );
}

#[test]
fn features_are_counted_and_their_rows_checked() {
    let case = OracleCase::load("dense", ProductPrecision::Float32);
    let mut cpu = case.open();
    let hidden = case.weights.config.text.hidden;
    let feature = cpu.store_rows(&vec![0.5; 2 * hidden]).unwrap();
    let full = cpu.store_rows(&vec![0.5; hidden]).unwrap_err();
    assert_eq!(full.to_string(), "tile features: 1 requested, 0 available");
    let own = sequence(0);
    let inset = [ImageInset { at: 0, len: 2, feature, row: 1 }];
    let span = own.span(&[900, 900, 1], &inset, LogitRows::Last);
    refused(&mut cpu, &[span], "rows of a tile feature: 3 requested, 2 available");
    let inset = [ImageInset { at: 2, len: 2, feature, row: 0 }];
    refused(
        &mut cpu,
        &[own.span(&[1, 1, 900], &inset, LogitRows::Last)],
        "tokens of a span with an inset: 4 requested, 3 available",
    );
    cpu.release(&[feature]);
    let inset = [ImageInset { at: 0, len: 1, feature, row: 0 }];
    refused(
        &mut cpu,
        &[own.span(&[900], &inset, LogitRows::Last)],
        "rows of a tile feature: 1 requested, 0 available",
    );
    cpu.store_rows(&vec![0.5; hidden]).unwrap();
}

#[test]
fn impossible_capacities_are_refused() {
    let case = OracleCase::load("dense", ProductPrecision::Float32);
    let good =
        BackendCapacity { slots: 1, pages: 1, rows_max: 1, logits_max: 1, features: 0, offload_bytes: 0 };
    let open = |capacity| {
        CpuBackend::open(Arc::clone(&case.weights), capacity, 1, ProductPrecision::Float32).map(|_| ())
    };
    open(good).unwrap();
    let none = |capacity: BackendCapacity, what: &str| match open(capacity) {
        Err(CpuOpenError::NoCapacity { what: got }) => assert_eq!(got, what),
        other => panic!("{other:?}"),
    };
    none(BackendCapacity { slots: 0, ..good }, "state slots");
    none(BackendCapacity { rows_max: 0, ..good }, "rows");
    none(BackendCapacity { logits_max: 0, ..good }, "rows of logits");
    // 4.3e9 slots of 57 KB are 245 TB: more than any machine has, and more than half of what 47
    // bits address.
    let text = &case.weights.config.text;
    let states = u64::from(u32::MAX) * 4 * (text.ssm_values() + text.conv_values());
    match open(BackendCapacity { slots: u32::MAX, ..good }) {
        Err(CpuOpenError::Full { requested, available }) => {
            assert_eq!(requested.ssm + requested.conv, states);
            assert!(available < states);
        }
        // On systems that do not report their free memory.
        Err(CpuOpenError::NoMemory { part: "the state of all slots", bytes, .. }) => {
            assert_eq!(bytes, states);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn sequences_that_cannot_be_run_are_refused() {
    #[track_caller]
    fn check(request: ForwardRequest<'_>, want: &str) {
        let case = OracleCase::load("dense", ProductPrecision::Float32);
        let error = forward(&mut case.open(), &request).unwrap_err();
        let text = match &error {
            ForwardError::Backend(source) => source.to_string(),
            other => other.to_string(),
        };
        assert_eq!(text, want);
    }
    let ids = [1; 600];
    let request = ForwardRequest { input_ids: &ids[..3], ..ForwardRequest::default() };
    check(ForwardRequest { input_ids: &[], ..request }, "no input ids: give at least one");
    check(
        ForwardRequest { segments: &[1, 1], ..request },
        "segments [1, 1] add up to 2, but there are 3 input ids; each must be at least 1",
    );
    check(
        ForwardRequest { segments: &[3, 0], ..request },
        "segments [3, 0] add up to 3, but there are 3 input ids; each must be at least 1",
    );
    let tile = furrow_model::vision::ImageTile { pixels: Vec::new(), hash: [0; 32] };
    check(ForwardRequest { tiles: &[tile], ..request }, &BackendError::NoVision.to_string());
    // 32 pages are 2,048 positions.
    check(
        ForwardRequest { decode: 2047, ..request },
        "positions of all pages: 2049 requested, 2048 available",
    );
    check(
        ForwardRequest { decode: usize::MAX, ..request },
        "18446744073709551615 rows of 512 logits do not fit into memory",
    );
}
