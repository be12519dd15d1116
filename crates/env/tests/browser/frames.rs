//! A page is looked at when the frames within it are quiet, too.

use furrow_env::{EnvFile, EnvironmentFactory, FileRoot, StaticSite};

use crate::fixture::{assignment, fixture_with, task};

/// Frames within frames, each on its host: each grows for some time after it was loaded, then
/// begins the next. The innermost one becomes red in the end.
async fn check_frames(hosts: [&str; 3], changes: u32) {
    let folder = tempfile::tempdir().unwrap();
    let grow = |then: &str| {
        format!(
            "<!doctype html><body style='margin:0'><script>let left = {changes}; const grow = () => {{ document.body.append(document.createElement('p')); \
             if (--left) return setTimeout(grow, 12); {then} }}; onload = grow</script>"
        )
    };
    let frame = |url: String| {
        format!(
            "const next = document.createElement('iframe'); next.src = '{url}'; \
             next.style = 'position:absolute;left:0;top:0;width:100%;height:100%;border:0'; document.body.append(next)"
        )
    };
    let write = |name: &str, html: String| std::fs::write(folder.path().join(name), html).unwrap();
    write("0.html", grow(&frame(format!("http://{}/1.html", hosts[0]))));
    write("1.html", grow(&frame(format!("http://{}/2.html", hosts[1]))));
    write("2.html", grow(&frame(format!("http://{}/3.html", hosts[2]))));
    write(
        "3.html",
        grow("fetch('late.txt').then(() => { document.documentElement.style.background = 'red' })"),
    );
    write("late.txt", "here".into());
    let site =
        |host: &str| StaticSite { host: host.into(), root: FileRoot::Folder(folder.path().to_owned()) };
    let sites = ["frames.test", "one.test", "two.test", "three.test"].map(site);
    // No pause between two changes is as long, and all of them together are much longer.
    let slow = |file: &mut EnvFile| (file.settle_quiet_millis, file.settle_cap_millis) = (250, 10_000);
    let fixture = fixture_with(slow, sites.into()).await;
    for attempt in 0..3 {
        let mut task = task("http://frames.test/0.html");
        task.allow_hosts = vec!["one.test".into(), "two.test".into(), "three.test".into()];
        let mut environment = fixture.pool.open(&assignment(task)).await.unwrap();
        environment.begin().await.unwrap();
        let screenshot = environment.observe().await.unwrap().screenshot;
        let screenshot = image::load_from_memory(&screenshot.bytes).unwrap().into_rgb8();
        let pixel = screenshot.get_pixel(300, 300).0;
        assert_eq!(pixel, [255, 0, 0], "{hosts:?}, attempt {attempt}");
        environment.close().await;
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_quiet_when_its_frames_are() {
    check_frames(["frames.test"; 3], 40).await;
    // Only the pauses between requests are known of other origins, and a busy machine stretches
    // them.
    check_frames(["one.test", "two.test", "three.test"], 3).await;
    check_frames(["frames.test", "two.test", "frames.test"], 3).await;
}
