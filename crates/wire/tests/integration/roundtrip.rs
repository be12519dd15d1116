//! Every domain type survives the round trip through its message, and no bytes from a peer cause a
//! panic.

use bytes::Bytes;
use furrow_rollout::*;
use furrow_testkit::generators;
use furrow_wire as wire;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::json;

fn text() -> impl Strategy<Value = String> + Clone {
    ".{0,30}"
}

fn format() -> impl Strategy<Value = ImageFormat> {
    prop_oneof![Just(ImageFormat::Png), (1u8..=100).prop_map(|quality| ImageFormat::Jpeg { quality })]
}

fn size() -> impl Strategy<Value = Size> {
    (1u32..=16_384, 1u32..=16_384).prop_map(|(width, height)| Size { width, height })
}

fn screenshot() -> impl Strategy<Value = Screenshot> {
    (vec(any::<u8>(), 0..64), format(), size()).prop_map(|(bytes, format, size)| Screenshot {
        bytes: bytes.into(),
        format,
        size,
    })
}

fn point() -> impl Strategy<Value = PagePoint> + Clone {
    generators::point(-10f32..5000.0)
}

fn reply() -> impl Strategy<Value = PolicyReply> {
    generators::reply(generators::action(point(), text()), text())
}

fn split() -> impl Strategy<Value = TimeSplit> {
    generators::time_split(1 << 40)
}

fn trace() -> impl Strategy<Value = Trace> {
    generators::trace(tokens(), generators::engine(text(), 0f32..200.0, any::<u64>()))
}

/// Marks with these roles and texts, each with the largest box that the picture allows at its
/// origin.
fn marks(texts: Vec<(String, String)>, picture: Size) -> Vec<Mark> {
    let mark = |(mark, (role, text)): (u32, (String, String))| {
        let x = (mark % picture.width) as f32;
        let y = (mark % picture.height) as f32;
        let width = picture.width as f32 - x;
        let height = picture.height as f32 - y;
        Mark { mark, role, text, x, y, width, height }
    };
    (1..).zip(texts).map(mark).collect()
}

fn observation() -> impl Strategy<Value = Observation> {
    let texts = option::of(vec(("[a-z]{0,20}", text()), 0..4));
    (
        screenshot(),
        text(),
        text(),
        vec(generators::tab(text()), 0..4),
        0f32..1e6,
        0f32..1e6,
        option::of(text()),
        texts,
    )
        .prop_map(|(screenshot, url, title, tabs, scroll_y, page_height, axtree, texts)| Observation {
            marks: texts.map(|texts| marks(texts, screenshot.size)),
            screenshot,
            url,
            title,
            tabs,
            scroll_y,
            page_height,
            axtree,
        })
}

fn tokens() -> impl Strategy<Value = TokenTrace> {
    let floats = |n: usize| option::of(vec(option::of(-50f32..=0.0), n));
    (0usize..6).prop_flat_map(move |n| {
        (
            (
                vec(any::<u32>(), 0..8),
                vec(generators::image_span(), 0..3),
                vec(any::<u32>(), n),
                vec(any::<bool>(), n),
            ),
            (
                vec(any::<bool>(), n),
                option::of(vec(any::<u32>(), 0..8)),
                any::<u32>(),
                any::<[u8; 16]>(),
                any::<[u8; 16]>(),
            ),
            (floats(n), floats(n), option::of(vec(option::of(any::<u32>()), n)), floats(n)),
            (
                vec(any::<u32>(), 0..5),
                vec(any::<u32>(), 0..5),
                vec(any::<i32>(), n),
                0..FinishReason::ALL.len(),
            ),
        )
            .prop_map(|(a, b, c, d)| TokenTrace {
                prompt_token_ids: a.0,
                image_spans: a.1,
                response_token_ids: a.2,
                response_mask: a.3,
                forced: b.0,
                commit_token_ids: b.1,
                prefix_len: b.2,
                prefix_hash: b.3,
                prompt_hash: b.4,
                logprobs: c.0,
                sampled_logprobs: c.1,
                kept_count: c.2,
                entropy: c.3,
                kept_token_ids: d.0,
                kept_offsets: d.1,
                policy_versions: d.2,
                finish_reason: FinishReason::ALL[d.3],
            })
    })
}

fn step() -> impl Strategy<Value = wire::OpaqueStep> {
    (any::<u32>(), observation(), reply(), generators::outcome(text()), trace(), split(), any::<i64>())
        .prop_map(|(step, observation, reply, outcome, trace, timing, observed_at_micros)| wire::OpaqueStep {
            step,
            observation,
            reply,
            outcome,
            trace: wire::encode_trace(&trace),
            timing,
            observed_at_micros,
        })
}

fn ending() -> impl Strategy<Value = TrajectoryEnding> {
    let evidence = (
        option::of(vec(any::<u8>(), 0..32)),
        [option::of(text()), option::of(text()), option::of(text()), option::of(text()), option::of(text())],
    )
        .prop_map(|(screenshot, [url, title, answer, probe_json, findings_json])| Evidence {
            screenshot: screenshot.map(Bytes::from),
            url,
            title,
            answer,
            probe_json,
            findings_json,
        });
    let walls = option::of(prop::sample::select(&WallsLevel::ALL[..]));
    let environment = (text(), text(), any::<bool>(), text(), text(), option::of(size()), walls).prop_map(
        |(worker, browser, sandbox, locale, timezone, viewport, walls)| EnvironmentFingerprint {
            worker,
            browser,
            sandbox,
            locale,
            timezone,
            viewport,
            walls,
        },
    );
    (
        0..EndKind::ALL.len(),
        text(),
        option::of(evidence),
        text(),
        any::<u32>(),
        option::of(generators::outcome(text())),
        split(),
        environment,
    )
        .prop_map(|(end, reason, evidence, goal, steps, last_outcome, timing, environment)| {
            TrajectoryEnding {
                end: EndKind::ALL[end],
                reason,
                evidence,
                goal,
                steps,
                last_outcome,
                timing,
                environment,
            }
        })
}

fn assignment() -> impl Strategy<Value = Assignment> {
    let task = (
        (text(), text(), 0usize..4, option::of(text()), text(), any::<u64>(), any::<u32>(), any::<u64>()),
        (size(), format(), option::of(size()), any::<bool>(), vec(text(), 0..3)),
        ([option::of(text()), option::of(text()), option::of(text())], option::of(any::<u32>())),
    )
        .prop_map(|(a, b, (hooks, virtual_step))| {
            let [start, probe, solve] = hooks;
            Task {
                task_id: a.0,
                suite: a.1,
                split: Split::ALL[a.2],
                goal: a.3,
                start_url: a.4,
                seed: a.5,
                max_steps: a.6,
                time_limit_millis: a.7,
                viewport: b.0,
                observation: ObservationSpec { format: b.1, clip: b.2, square: b.3 },
                allow_hosts: b.4,
                hooks: PageHooks { start, probe, solve },
                clock: virtual_step.map_or(PageClock::Real, |step_millis| PageClock::Virtual { step_millis }),
            }
        });
    let session = (text(), vec(0usize..5, 0..4), 0f32..2.0, any::<u32>(), any::<u64>(), text(), 0u32..9)
        .prop_map(|(name, extra, temperature, top_k, seed, instructions, keep)| SessionSpec {
            grammar: Grammar { name, extra: extra.into_iter().map(|i| ExtraAction::ALL[i]).collect() },
            sampling: SamplingParams { temperature, top_k, seed, ..SamplingParams::default() },
            context: match keep {
                0 => ContextPolicy::Append,
                1 => ContextPolicy::LastImage,
                2 => ContextPolicy::Fresh,
                k => ContextPolicy::Window(k),
            },
            instructions,
        });
    let secret = any::<[u8; LEASE_SECRET_BYTES]>().prop_map(LeaseSecret::new);
    let lease = (any::<u64>(), secret, any::<u64>());
    (task, files(), session, lease, text(), any::<u32>(), any::<u32>()).prop_map(
        |(task, files, session, (token, secret, lease_millis), policy_address, sample_index, attempt)| {
            let run_id = Id::new("run-1").unwrap();
            let group_id = Id::nth(&run_id, 7);
            let trajectory_id = Id::attempt(&group_id, sample_index, attempt);
            Assignment {
                ancestry: TrajectoryAncestry { run_id, group_id, sample_index, attempt, trajectory_id },
                token,
                secret,
                lease_millis,
                task,
                files,
                checks: checks(),
                secrets: vec!["SHOP_PASSWORD".into(), "PIN2".into()],
                session,
                policy_address,
            }
        },
    )
}

fn files() -> impl Strategy<Value = TaskFiles> {
    let file = ("[a-z]{1,9}", vec(any::<u8>(), 0..9))
        .prop_map(|(name, content)| UploadFile { name, content: content.into() });
    (vec(file, 0..=UPLOAD_FILES_MAX), option::of(any::<u64>()))
        .prop_map(|(uploads, download_bytes_max)| TaskFiles { uploads, download_bytes_max })
}

/// One query of each kind.
fn checks() -> TaskChecks {
    let query = |json| FinalQuery::of_json(&json).unwrap();
    TaskChecks {
        reset: Some("shop".into()),
        queries: vec![
            query(json!({"kind": "text", "selector": "h1", "host": "*.a.test"})),
            query(json!({"kind": "storage", "area": "local", "key": "cart"})),
            query(json!({"kind": "cookie", "name": "id"})),
            query(json!({"kind": "script", "expression": "1 + 1"})),
            query(json!({"kind": "http", "method": "GET", "url": "http://a.test/", "pointer": "/a"})),
            query(json!({"kind": "command", "hook": "shop"})),
        ],
    }
}

fn order() -> impl Strategy<Value = WeightsOrder> {
    let link = (prop::sample::select(&WeightsForm::ALL[..]), "/[a-z/]{0,40}")
        .prop_map(|(form, directory)| WeightsLink { form, directory });
    (1..i32::MAX, vec(link, 0..4), option::of("[0-9a-f]{64}"), any::<bool>()).prop_map(
        |(version, links, weights_sha256, taken)| WeightsOrder {
            version: PolicyVersion(version),
            links,
            weights_sha256,
            taken,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn orders_survive(order in order()) {
        prop_assert_eq!(wire::weights_order_from(wire::weights_order_into(&order)).unwrap(), order);
    }

    #[test]
    fn steps_survive(step in step()) {
        let bytes = wire::encode_opaque_step(&step);
        prop_assert_eq!(wire::decode_opaque_step(bytes).unwrap(), step);
    }

    #[test]
    fn traces_survive(trace in trace()) {
        prop_assert_eq!(wire::decode_trace(&wire::encode_trace(&trace)).unwrap(), trace);
    }

    #[test]
    fn endings_survive(ending in ending()) {
        prop_assert_eq!(wire::decode_ending(wire::encode_ending(&ending)).unwrap(), ending);
    }

    #[test]
    fn assignments_survive(assignment in assignment()) {
        let contents = wire::FileContents::new(wire::FileContents::of([&assignment]));
        let message = wire::assignment_into(&assignment);
        prop_assert_eq!(wire::assignment_from(message, &contents).unwrap(), assignment);
    }

    #[test]
    fn damaged_steps_are_refused_or_read(step in step(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = wire::encode_opaque_step(&step).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        // The result must be a value: a step, or an error with a text.
        if let Err(error) = wire::decode_step(bytes.into()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut wire::OpaqueStep), want: &str) {
    let shot = Screenshot { bytes: Bytes::new(), format: ImageFormat::Png, size: Size::new(8, 8) };
    let mut step_record = wire::OpaqueStep {
        step: 0,
        observation: Observation {
            screenshot: shot,
            url: String::new(),
            title: String::new(),
            tabs: vec![],
            scroll_y: 0.0,
            page_height: 0.0,
            axtree: None,
            marks: None,
        },
        reply: PolicyReply {
            raw_text: String::new(),
            name: String::new(),
            args_json: "{}".into(),
            action: Ok(Action::GoBack),
        },
        outcome: Outcome::named(OutcomeName::Ok),
        trace: Bytes::new(),
        timing: TimeSplit::default(),
        observed_at_micros: 0,
    };
    change(&mut step_record);
    let error = wire::decode_opaque_step(wire::encode_opaque_step(&step_record)).unwrap_err();
    assert!(error.to_string().contains(want), "{error} does not contain {want:?}");
}

#[test]
fn an_error_names_the_field_and_the_expected_value() {
    refused(
        |step| step.observation.scroll_y = f32::NAN,
        "observation.scroll_y is \"NaN\"; expected a finite number",
    );
    refused(
        |step| step.observation.screenshot.size = Size::new(0, 8),
        "size is \"0x8\"; expected sides of 1 to 16384 pixels",
    );
    refused(|step| step.observation.title = "x".repeat(5000), "observation.title has 5000, at most 4096");
    refused(
        |step| {
            step.observation.tabs =
                vec![TabInfo { title: String::new(), url: String::new(), active: false }; 257];
        },
        "observation.tabs has 257",
    );
    refused(
        |step| step.observation.screenshot.bytes = vec![0; 13 << 20].into(),
        "screenshot.bytes has 13631488",
    );
    refused(|step| step.timing.add(TimeCause::Boot, u64::MAX), "timing.micros");
}

#[test]
fn wrong_marks_are_refused() {
    let mark = |mark| Mark {
        mark,
        role: String::new(),
        text: String::new(),
        x: 0.0,
        y: 0.0,
        width: 8.0,
        height: 8.0,
    };
    refused(
        |step| step.observation.marks = Some((1..=1001).map(mark).collect()),
        "observation.marks has 1001, at most 1000",
    );
    refused(|step| step.observation.marks = Some(vec![mark(2)]), "expected marks numbered from 1");
    refused(
        |step| step.observation.marks = Some(vec![Mark { width: 8.5, ..mark(1) }]),
        "boxes inside the picture",
    );
    refused(
        |step| step.observation.marks = Some(vec![Mark { text: "x".repeat(201), ..mark(1) }]),
        "mark 1 has more than 200 characters of text",
    );
    refused(
        |step| step.observation.marks = Some(vec![Mark { role: "x".repeat(65), ..mark(1) }]),
        "observation.marks.role has 65, at most 64",
    );
}

#[test]
fn an_action_out_of_range_is_refused() {
    refused(
        |step| step.reply.action = Ok(Action::Wait { seconds: 31 }),
        "wait.seconds is \"31\"; expected 0 to 30",
    );
    let at = PagePoint { x: 1.0, y: 1.0 };
    refused(
        |step| {
            step.reply.action = Ok(Action::Click {
                at: Some(at),
                button: PointerButton::Left,
                count: 4,
                modifiers: Modifiers::NONE,
            });
        },
        "click.count is \"4\"; expected 1 to 3",
    );
    refused(
        |step| {
            step.reply.action = Ok(Action::Scroll {
                at: None,
                direction: ScrollDirection::Up,
                pixels: Some(0),
                modifiers: Modifiers::NONE,
            });
        },
        "scroll.pixels is \"0\"; expected 1 to 10000",
    );
    refused(
        |step| step.reply.action = Ok(Action::PressKey { key: "a".into(), times: 21 }),
        "press_key.times is \"21\"; expected 1 to 20",
    );
    for millis in [0, 30_001] {
        refused(
            |step| step.reply.action = Ok(Action::HoldKey { key: "a".into(), millis }),
            &format!("hold_key.millis is \"{millis}\"; expected 1 to 30000"),
        );
    }
    refused(
        |step| step.reply.action = Ok(Action::KeyDown { key: "a".repeat(257) }),
        "key_down.key has 257, at most 256",
    );
    refused(
        |step| step.reply.action = Ok(Action::Several(vec![Action::GoBack])),
        "several.actions is \"1 actions\"; expected 2 to 16 actions",
    );
    refused(
        |step| {
            let inner = Action::Several(vec![Action::GoBack, Action::GoBack]);
            step.reply.action = Ok(Action::Several(vec![inner, Action::GoBack]));
        },
        "none of them several",
    );
}

#[test]
fn impossible_orders_are_refused() {
    let good = || wire::v1::WeightsOrder {
        version: 3,
        links: vec![wire::v1::WeightsLink { form: "delta".into(), directory: "/w/3".into() }],
        weights_sha256: None,
        taken: false,
    };
    let check = |change: &dyn Fn(&mut wire::v1::WeightsOrder), want: &str| {
        let mut message = good();
        change(&mut message);
        let error_text = wire::weights_order_from(message).unwrap_err().to_string();
        assert!(error_text.contains(want), "{want:?} not in {error_text:?}");
    };
    assert!(wire::weights_order_from(good()).is_ok());
    check(&|order| order.version = 0, "weights.version is \"0\"; expected 1 or more");
    check(&|order| order.links[0].form = "pickle".into(), "expected full, delta or adapter");
    check(&|order| order.links[0].directory = "w/3".into(), "expected an absolute path");
    check(&|order| order.links[0].directory = "/w\0".into(), "expected an absolute path");
    check(&|order| order.links[0].directory = "/".repeat(5000), "weights.directory has 5000, at most 4096");
    check(&|order| order.links = vec![order.links[0].clone(); 65], "weights.links has 65, at most 64");
    check(&|order| order.weights_sha256 = Some("beef".into()), "64 hexadecimal digits");
}
