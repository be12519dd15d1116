//! Declarations, values, and what is filled in.

use super::*;

fn declared(secrets: &[(&str, &str, &[&str])]) -> Vec<DeclaredSecret> {
    let file = |variable: &str, hosts: &[&str]| SecretFile {
        variable: variable.into(),
        hosts: hosts.iter().map(ToString::to_string).collect(),
    };
    let files = secrets.iter().map(|(name, variable, hosts)| ((*name).to_owned(), file(variable, hosts)));
    check_all(files.collect()).unwrap()
}

fn worker(values: &[(&str, &str)]) -> Arc<WorkerSecrets> {
    let declared: Vec<_> = values
        .iter()
        .flat_map(|(name, _)| declared(&[(name, name, &["shop.test", "*.bank.test"])]))
        .collect();
    let read = |variable: &str| {
        values.iter().find(|(name, _)| *name == variable).map(|(_, value)| OsString::from(value))
    };
    Arc::new(WorkerSecrets::read_from(&declared, read).unwrap())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn a_declaration_that_cannot_be_kept_is_refused() {
    let refused = |name: &str, variable: &str, hosts: &[&str], want: &str| {
        let file = SecretFile { variable: variable.into(), hosts: names(hosts) };
        let problems = check_all(BTreeMap::from([(name.to_owned(), file)])).unwrap_err();
        assert_eq!(problems, [want], "{name}");
    };
    let host = &["shop.test"];
    refused(
        "pw",
        "PW",
        host,
        "env.secrets.pw: \"pw\" is not a name; use 1 to 64 of A-Z 0-9 _, a letter first",
    );
    let variable = "use the name of a variable of the worker's environment, such as SHOP_PASSWORD";
    refused("PW", "", host, &format!("env.secrets.PW.variable: \"\"; {variable}"));
    refused("PW", "A=B", host, &format!("env.secrets.PW.variable: \"A=B\"; {variable}"));
    refused("PW", "PW", &[], "env.secrets.PW.hosts: 0 hosts; use 1 to 64");
    for wrong in ["*", "http://shop.test", "127.0.0.1", "localhost", "*.*", ""] {
        let want =
            format!("env.secrets.PW.hosts[0]: {wrong:?} is not a host; use host.example or *.host.example");
        refused("PW", "PW", &[wrong], &want);
    }
    let many = (0..=SECRETS_MAX)
        .map(|index| (format!("S{index}"), SecretFile { variable: "V".into(), hosts: names(host) }));
    assert_eq!(check_all(many.collect()).unwrap_err(), ["env.secrets: 129 secrets; use at most 128"]);
}

#[test]
fn a_variable_that_cannot_be_used_is_named_without_its_value() {
    let declared = declared(&[
        ("ALPHA", "V_ALPHA", &["shop.test"]),
        ("BETA_PASSWORD", "V_BETA", &["shop.test"]),
        ("GAMMA", "V_GAMMA", &["shop.test"]),
    ]);
    let read = |variable: &str| match variable {
        "V_BETA" => Some(OsString::from("beta_password")),
        "V_GAMMA" => Some(OsString::from("tiny")),
        _ => None,
    };
    assert_eq!(
        WorkerSecrets::read_from(&declared, read).unwrap_err(),
        [
            "env.secrets.ALPHA.variable: V_ALPHA is not set in this process; export it where the environment worker starts",
            "env.secrets.BETA_PASSWORD.variable: V_BETA has a value that occurs in {{BETA_PASSWORD}}, which replaces a value in records; use another value or name",
            "env.secrets.GAMMA.variable: V_GAMMA has 4 characters; use at least 6, fewer cannot be found in texts",
        ]
    );
}

#[test]
fn placeholders_of_the_task_are_filled_in_and_others_stay() {
    let worker = worker(&[("PW", "hunter2!"), ("PW2", "{{PW}}-in-it"), ("OTHER", "not-for-it")]);
    let secrets = TrajectorySecrets::new(worker.clone(), &names(&["PW", "PW2"])).unwrap();
    for (content, want) in [
        ("{{PW}}", Some("hunter2!")),
        ("a{{PW}}b{{PW}}", Some("ahunter2!bhunter2!")),
        ("{{{PW}}}", Some("{hunter2!}")),
        ("{{PW2}}", Some("{{PW}}-in-it")),
        ("{{PW}} {{OTHER}} {{NONE}}", Some("hunter2! {{OTHER}} {{NONE}}")),
        ("{{OTHER}}", None),
        ("{{pw}}", None),
        ("{{ PW }}", None),
        ("{{PW}", None),
        ("hunter2!", None),
        ("", None),
    ] {
        assert_eq!(secrets.fill(content).map(|text| text.text().to_owned()).as_deref(), want, "{content}");
    }
    let unknown = TrajectorySecrets::new(worker, &names(&["GONE"])).unwrap_err();
    assert!(unknown.contains("GONE is not declared in the job of this worker"), "{unknown}");
}

#[test]
fn only_pages_of_its_hosts_get_a_secret() {
    let secrets = TrajectorySecrets::new(worker(&[("PW", "hunter2!")]), &names(&["PW"])).unwrap();
    let text = secrets.fill("{{PW}}").unwrap();
    for (host, gets_it) in [
        ("shop.test", true),
        ("SHOP.test", true),
        ("www.bank.test", true),
        ("bank.test", false),
        ("evil-shop.test", false),
        ("shop.test.evil.test", false),
        ("shop.test.", false),
        ("127.0.0.1", false),
        ("", false),
    ] {
        assert_eq!(text.refusal(host).is_none(), gets_it, "{host}");
    }
    let why = text.refusal("evil.test").unwrap();
    assert_eq!(why, "{{PW}} is not for pages of evil.test; nothing was typed");
}

#[test]
fn an_address_with_a_placeholder_is_refused() {
    let refused = |action: Action| refused_address(&action, &names(&["PW"]));
    let goto = |url: &str| Action::Goto { url: url.into() };
    let with = "https://x.test/?k={{PW}}";
    let why = Some("{{PW}} cannot be part of an address; type it into a field of the page".to_owned());
    assert_eq!(refused(goto(with)), why);
    assert_eq!(refused(Action::OpenTab { url: with.into() }), why);
    assert_eq!(refused(Action::Several(vec![Action::GoBack, goto(with)])), why);
    assert_eq!(refused(goto("https://x.test/?k={{OTHER}}")), None);
    assert_eq!(refused(Action::Answer { content: "{{PW}}".into() }), None);
    assert_eq!(refused(Action::Write { into: None, content: "{{PW}}".into(), press_enter: false }), None);
}

#[test]
fn no_value_is_printed() {
    let secrets = TrajectorySecrets::new(worker(&[("PW", "hunter2!")]), &names(&["PW"])).unwrap();
    assert!(!format!("{secrets:?}").contains("hunter"), "{secrets:?}");
}

#[test]
fn a_replay_knows_placeholders_alone_and_writes_them_one_way() {
    let declared = declared(&[("PW", "PW", &["shop.test"])]);
    let replay = WorkerSecrets::placeholders(&declared);
    for recorded in ["hunter2!", "hunter2%21"] {
        let live = worker(&[("PW", "hunter2!")]);
        let url = format!("http://shop.test/?k={recorded}");
        assert_eq!(live.archived().text(&url), "http://shop.test/?k={{PW}}");
    }
    for sent in ["{{PW}}", "%7B%7BPW%7D%7D", "%7b%7bPW%7d%7d"] {
        let url = format!("http://shop.test/?k={sent}");
        assert_eq!(replay.archived().text(&url), "http://shop.test/?k={{PW}}");
    }
}
