//! Orderly and disorderly ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::cli::demo::process::Signal;

use super::support::{Pair, Writer, eventually, seed, throughout, when};
use super::{Rig, limit, loopbacks, number, ready};

#[test]
fn sigterm_drains_saves_and_prints_the_final_positions() {
    let test = "sigterm_drains_saves_and_prints_the_final_positions";
    let pair = Pair::start();
    let rig = Rig::new(&pair, 2);
    let mut daemon = rig.start();
    ready(&mut daemon);
    let writer = Writer::start(Arc::clone(&pair.up), &rig.topic, 2, 2_000, seed(test));
    eventually(limit(), "messages", || when(pair.down.total(&rig.topic, 2) > 500));
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.status);
    // It has ended; what it wrote is read to the end.
    (*daemon).kill();
    let lines = daemon.lines();
    let said = |words: &[&str]| lines.iter().any(|line| words.iter().all(|w| line.contains(w)));
    let file = rig.home.config_file().display().to_string();
    let (code, shown, _) = rig.home.run(&["state", "show", "--json", "--config", &file]);
    assert_eq!(code, 0, "{shown}");
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let feeds = shown["sources"][0]["feeds"].as_array().expect("feeds");
    assert_eq!(feeds.len(), 2, "{shown:#}");
    for feed in feeds {
        let (partition, position) = (number(&feed["partition"]), number(&feed["position"]));
        assert_eq!(feed["clean_stop"], true, "{feed:#}");
        // All that was acked is saved: the destination ends exactly there.
        let end = rig.down_end(u32::try_from(partition).expect("a partition"));
        assert_eq!(end, number(&feed["downstream_position"]), "{feed:#}");
        let words = [
            "final position".to_owned(),
            format!("\"partition\":{partition}"),
            format!("\"position\":{position}"),
            format!("\"durable\":{position}"),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert!(said(&words), "{words:?} in {}", lines.join("\n"));
    }
    assert!(said(&["stopped in order: positions are saved"]), "{}", lines.join("\n"));
    writer.stop();
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_second_sigterm_leaves_at_once_with_143_and_loses_nothing() {
    let test = "a_second_sigterm_leaves_at_once_with_143_and_loses_nothing";
    let Some(brokers) = loopbacks(test) else { return };
    let rig = Rig::new(&brokers.pair, 1).with(|config| config.down("request_timeout", "20s"));
    rig.write_all(0..50);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    // A send that is not answered holds an orderly stop.
    brokers.down.pause();
    rig.write_all(50..60);
    std::thread::sleep(Duration::from_millis(200));
    daemon.signal(Signal::Term);
    let asked = |daemon: &super::support::Daemon| {
        daemon.lines().iter().any(|line| line.contains("asked to stop"))
    };
    eventually(limit(), "the first signal to be heard", || when(asked(&daemon)));
    throughout(Duration::from_millis(300), "it waits for the answer", || {
        daemon.try_wait().is_none()
    });
    let begun = Instant::now();
    daemon.signal(Signal::Term);
    let ended = daemon.wait(Duration::from_secs(5)).expect("it leaves at once");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(ended.status.code(), Some(143), "{}", ended.status);
    brokers.down.resume();
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}

#[test]
fn a_stop_waits_for_drain_timeout_and_no_longer() {
    let Some(brokers) = loopbacks("a_stop_waits_for_drain_timeout_and_no_longer") else { return };
    let rig = Rig::new(&brokers.pair, 1)
        .with(|config| config.down("request_timeout", "20s").daemon("drain_timeout", "500ms"));
    rig.write_all(0..50);
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    ready(&mut daemon);
    brokers.down.pause();
    rig.write_all(50..60);
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    let ended = daemon.terminate();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.status);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(8), "{took:?}");
    brokers.down.resume();
    let mut daemon = rig.start();
    rig.copied(&mut daemon);
    daemon.stop();
    rig.assert_exact();
}
