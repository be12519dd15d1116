//! Strategies for the domain types. The caller supplies the leaves: a parser that limits texts or
//! coordinates is tested with values it accepts, a table without limits with any value.

use furrow_rollout::{
    Action, CLICKS_MAX, EngineStats, HOLD_MILLIS_MAX, ImageSpan, Modifier, Modifiers, Outcome, OutcomeName,
    PRESSES_MAX, PagePoint, PointerButton, PolicyKind, PolicyReply, PolicyVersion, SCROLL_PIXELS_MAX,
    ScrollDirection, StateOrigin, TabInfo, TimeCause, TimeSplit, TokenTrace, Trace, UPLOAD_FILES_MAX,
    WAIT_SECONDS_MAX,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// A point with coordinates of this strategy.
pub fn point(coordinate: impl Strategy<Value = f32> + Clone) -> impl Strategy<Value = PagePoint> + Clone {
    (coordinate.clone(), coordinate).prop_map(|(x, y)| PagePoint { x, y })
}

/// Every kind of action, and several of them combined into one.
pub fn action(
    point: impl Strategy<Value = PagePoint> + Clone + 'static,
    text: impl Strategy<Value = String> + Clone + 'static,
) -> impl Strategy<Value = Action> {
    let several = vec(one_action(point.clone(), text.clone()), 2..5);
    let several =
        several.prop_filter_map("nothing follows an answer", |actions| Action::of_several(actions).ok());
    prop_oneof![4 => one_action(point, text), 1 => several]
}

fn one_action(
    point: impl Strategy<Value = PagePoint> + Clone + 'static,
    text: impl Strategy<Value = String> + Clone + 'static,
) -> impl Strategy<Value = Action> {
    let write = (option::of(point.clone()), text.clone(), any::<bool>());
    prop_oneof![
        (option::of(point.clone()), select(&PointerButton::ALL[..]), 1..=CLICKS_MAX, modifiers())
            .prop_map(|(at, button, count, modifiers)| Action::Click { at, button, count, modifiers }),
        (point.clone(), modifiers()).prop_map(|(at, modifiers)| Action::Move { at, modifiers }),
        write.prop_map(|(into, content, press_enter)| Action::Write { into, content, press_enter }),
        scroll(option::of(point.clone())),
        Just(Action::GoBack),
        Just(Action::GoForward),
        Just(Action::Refresh),
        Just(Action::Restart),
        text.clone().prop_map(|url| Action::Goto { url }),
        (0u8..=WAIT_SECONDS_MAX).prop_map(|seconds| Action::Wait { seconds }),
        text.clone().prop_map(|content| Action::Answer { content }),
        (option::of(point.clone()), point.clone(), modifiers())
            .prop_map(|(from, to, modifiers)| Action::Drag { from, to, modifiers }),
        any::<u32>().prop_map(|index| Action::SelectTab { index }),
        text.clone().prop_map(|url| Action::OpenTab { url }),
        keyboard_action(text.clone()),
        vec(text, 1..=UPLOAD_FILES_MAX).prop_map(|names| Action::Upload { names }),
        (option::of(point), select(&PointerButton::ALL[..]), any::<bool>()).prop_map(
            |(at, button, is_down)| match is_down {
                true => Action::MouseDown { at, button },
                false => Action::MouseUp { at, button },
            }
        ),
    ]
}

fn scroll(at: impl Strategy<Value = Option<PagePoint>>) -> impl Strategy<Value = Action> {
    let pixels = option::of(1..=SCROLL_PIXELS_MAX);
    (at, select(&ScrollDirection::ALL[..]), pixels, modifiers())
        .prop_map(|(at, direction, pixels, modifiers)| Action::Scroll { at, direction, pixels, modifiers })
}

fn keyboard_action(text: impl Strategy<Value = String> + Clone + 'static) -> impl Strategy<Value = Action> {
    prop_oneof![
        (text.clone(), 1..=PRESSES_MAX).prop_map(|(key, times)| Action::PressKey { key, times }),
        (text.clone(), 1..=HOLD_MILLIS_MAX).prop_map(|(key, millis)| Action::HoldKey { key, millis }),
        text.clone().prop_map(|key| Action::KeyDown { key }),
        text.prop_map(|key| Action::KeyUp { key }),
    ]
}

/// Any set of modifier keys, often none.
fn modifiers() -> impl Strategy<Value = Modifiers> {
    let some = prop::sample::subsequence(&Modifier::ALL[..], 1..=Modifier::ALL.len());
    let some = some.prop_map(|all| all.into_iter().fold(Modifiers::NONE, Modifiers::with));
    prop_oneof![Just(Modifiers::NONE), some]
}

/// A reply that was parsed as this action, or failed to parse.
pub fn reply(
    action: impl Strategy<Value = Action> + 'static,
    text: impl Strategy<Value = String> + Clone + 'static,
) -> impl Strategy<Value = PolicyReply> {
    let action = prop_oneof![action.prop_map(Ok), text.clone().prop_map(Err)];
    (text.clone(), text.clone(), text, action).prop_map(|(raw_text, name, args_json, action)| PolicyReply {
        raw_text,
        name,
        args_json,
        action,
    })
}

/// Any outcome with a detail of this strategy.
pub fn outcome(text: impl Strategy<Value = String>) -> impl Strategy<Value = Outcome> {
    (select(&OutcomeName::ALL[..]), text).prop_map(|(name, detail)| Outcome { name, detail })
}

/// A tab of a browser.
pub fn tab(text: impl Strategy<Value = String> + Clone) -> impl Strategy<Value = TabInfo> {
    (text.clone(), text, any::<bool>()).prop_map(|(title, url, active)| TabInfo { title, url, active })
}

/// Time by cause, less than `most` microseconds each.
pub fn time_split(most: u64) -> impl Strategy<Value = TimeSplit> {
    vec(0..most, TimeCause::ALL.len()).prop_map(|parts| {
        let mut split = TimeSplit::default();
        TimeCause::ALL.into_iter().zip(parts).for_each(|(cause, micros)| split.add(cause, micros));
        split
    })
}

/// The position of any image in a prompt.
pub fn image_span() -> impl Strategy<Value = ImageSpan> + Clone {
    let numbers = any::<(u32, u32, u32, u16, u16)>();
    (numbers, any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(
        |((step, token_start, token_len, tiles_x, tiles_y), blob_sha256, rgb_sha256)| ImageSpan {
            step,
            token_start,
            token_len,
            tiles_x,
            tiles_y,
            blob_sha256,
            rgb_sha256,
        },
    )
}

/// An engine's statistics of a step.
pub fn engine(
    worker: impl Strategy<Value = String>,
    batch_size: impl Strategy<Value = f32>,
    micros: impl Strategy<Value = u64> + Clone,
) -> impl Strategy<Value = EngineStats> {
    let source = (worker, option::of(any::<u32>()), option::of(select(StateOrigin::ALL)), batch_size);
    let times = (micros.clone(), micros.clone(), micros);
    (source, any::<[u32; 3]>(), times).prop_map(|(source, counts, times)| {
        let (worker, slot, state_origin, batch_size_mean) = source;
        let [prefill_tokens, reused_tokens, decode_steps] = counts;
        let (queue_micros, service_micros, gpu_micros) = times;
        EngineStats {
            worker,
            slot,
            state_origin,
            batch_size_mean,
            prefill_tokens,
            reused_tokens,
            decode_steps,
            queue_micros,
            service_micros,
            gpu_micros,
            cost_usd: None,
        }
    })
}

/// A policy's trace, with or without tokens.
pub fn trace(
    tokens: impl Strategy<Value = TokenTrace>,
    engine: impl Strategy<Value = EngineStats>,
) -> impl Strategy<Value = Trace> {
    let version = || option::of(any::<i32>().prop_map(PolicyVersion));
    (select(PolicyKind::ALL), version(), version(), option::of(tokens), engine).prop_map(
        |(policy_kind, policy_version, state_version_min, tokens, engine)| Trace {
            policy_kind,
            policy_version,
            state_version_min,
            tokens,
            engine,
            rescored: Vec::new(),
        },
    )
}
