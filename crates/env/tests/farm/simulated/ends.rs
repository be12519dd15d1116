//! Every end of a trajectory, by what caused it.

use super::*;

/// One way to end, and the expected report.
struct EndCase {
    behaviour: PolicyBehaviour,
    config: SimConfig,
    task: fn(&mut Task),
    end: EndKind,
    steps: u32,
    outcome: Option<OutcomeName>,
    has_evidence: bool,
    reason: &'static str,
}

fn case(behaviour: PolicyBehaviour, end: EndKind, steps: u32) -> EndCase {
    EndCase {
        behaviour,
        config: sim_config(),
        task: |_| {},
        end,
        steps,
        outcome: None,
        has_evidence: true,
        reason: "",
    }
}

fn goto(url: &str) -> PolicyBehaviour {
    PolicyBehaviour::Act(Action::Goto { url: url.into() })
}

#[tokio::test]
async fn ends_that_the_policy_causes_have_their_names() {
    use OutcomeName::*;
    for case in [
        case(PolicyBehaviour::Click, EndKind::Done, 4),
        EndCase {
            outcome: Some(Answered),
            ..case(PolicyBehaviour::Act(Action::Answer { content: "42".into() }), EndKind::Answered, 1)
        },
        EndCase {
            outcome: Some(InvalidAction),
            reason: "3 replies in a row",
            ..case(PolicyBehaviour::Nonsense, EndKind::Unparsable, 3)
        },
        EndCase {
            outcome: Some(OffList),
            reason: "other.test",
            ..case(goto("http://other.test/"), EndKind::OffListNavigation, 1)
        },
        EndCase {
            outcome: Some(OffList),
            ..case(goto("http://127.0.0.1:9222/json"), EndKind::OffListNavigation, 1)
        },
        EndCase { outcome: Some(OffList), ..case(goto("file:///etc/passwd"), EndKind::OffListNavigation, 1) },
        EndCase { outcome: Some(Ok), ..case(goto("http://sim.test/page"), EndKind::MaxSteps, 20) },
        EndCase { task: |task| task.max_steps = 2, ..case(PolicyBehaviour::Click, EndKind::MaxSteps, 2) },
        case(PolicyBehaviour::ContextFull, EndKind::ContextFull, 0),
        // The step that took the time is recorded: it is what a trainer must see.
        EndCase {
            config: SimConfig { settle: Duration::from_secs(3600), ..sim_config() },
            task: |task| task.time_limit_millis = 2_000,
            outcome: Some(NotSettled),
            reason: "time limit of 2000 ms",
            ..case(PolicyBehaviour::Click, EndKind::MaxTime, 1)
        },
    ] {
        check_end(case).await;
    }
}

#[tokio::test]
async fn ends_that_the_farm_causes_have_their_names() {
    use OutcomeName::*;
    let fault = |crash, hang, death| SimConfig { faults: FaultRates { crash, hang, death }, ..sim_config() };
    let farms = SimConfig { observe: Duration::from_secs(3600), ..sim_config() };
    for case in [
        EndCase {
            config: fault(0.0, 1.0, 0.0),
            outcome: Some(PageHang),
            reason: "input",
            ..case(PolicyBehaviour::Click, EndKind::PageHang, 1)
        },
        EndCase {
            config: fault(1.0, 0.0, 0.0),
            outcome: Some(PageCrash),
            has_evidence: false,
            ..case(PolicyBehaviour::Click, EndKind::PageCrash, 1)
        },
        EndCase {
            config: fault(0.0, 0.0, 1.0),
            outcome: Some(BrowserDead),
            has_evidence: false,
            ..case(PolicyBehaviour::Click, EndKind::BrowserDead, 1)
        },
        EndCase {
            has_evidence: false,
            reason: "not a number",
            ..case(PolicyBehaviour::Fails, EndKind::PolicyFault, 0)
        },
        EndCase {
            config: farms,
            task: |task| task.time_limit_millis = 50,
            has_evidence: false,
            reason: "time limit of 50 ms",
            ..case(PolicyBehaviour::Click, EndKind::Cancelled, 0)
        },
        EndCase {
            task: |task| task.allow_hosts = vec!["10.0.0.1".into()],
            has_evidence: false,
            reason: "10.0.0.1",
            ..case(PolicyBehaviour::Click, EndKind::EnvCrash, 0)
        },
    ] {
        check_end(case).await;
    }
}

async fn check_end(case: EndCase) {
    let policy = StubPolicy::new(case.behaviour.clone()).serve(0);
    let mut assigned = assignment(0, policy.address);
    (case.task)(&mut assigned.task);
    let farm = Farm::simulated(config(), case.config, vec![assigned]);
    farm.finished(1).await;
    let (ending, steps) = farm.book.read(|book| (book.ending(&name(0)).unwrap(), book.recorded(&name(0))));
    let what = format!("{:?} ended {:?}: {}", case.behaviour, ending.end, ending.reason);
    assert_eq!((ending.end, ending.steps, steps.len() as u32), (case.end, case.steps, case.steps), "{what}");
    assert_eq!(ending.evidence.is_some(), case.has_evidence, "{what}");
    assert!(ending.reason.contains(case.reason), "{what}");
    if let Some(outcome) = case.outcome {
        assert_eq!(steps.last().unwrap().outcome.name, outcome, "{what}");
    }
    let answer = ending.evidence.and_then(|evidence| evidence.answer);
    assert_eq!(answer.as_deref(), (case.end == EndKind::Answered).then_some("42"), "{what}");
    assert_eq!(farm.end().await.acknowledged, 1, "{what}");
}
