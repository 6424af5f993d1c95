//! Every fuzz target as a test: each input that ever broke a promise, every recording, and then
//! damaged recordings for a bounded time. The programs in `fuzz/` call the same functions.
//!
//! `TIDEGATE_SEED=N` repeats a run, `TIDEGATE_FUZZ_SECONDS=N` makes it longer and
//! `TIDEGATE_FUZZ_TARGET` keeps it to one target. What breaks is written to `target/fuzz/`; put it
//! into `tests/fuzz/crashes/<target>/` once it is mended.
#![allow(clippy::disallowed_methods, reason = "tests own their files, sockets and clock")]

mod corpus;
mod mutate;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs};

use targets::{TARGETS, Target};

/// Of each target, where nobody says otherwise.
const TIME: Duration = Duration::from_millis(1_500);
/// The largest input that is made.
const LARGEST: usize = 1 << 16;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Calls the target, and leaves the input behind if it panics.
fn call((name, target): Target, input: &[u8], told: &str) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join(format!("target/fuzz/{name}-{}", std::process::id()));
    let written =
        fs::create_dir_all(root.join("target/fuzz")).and_then(|()| fs::write(&path, input));
    eprintln!("{name}: {told} breaks a promise; the input is {} ({written:?})", path.display());
    resume_unwind(panic);
}

#[test]
fn every_target_has_a_corpus_and_a_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let programs = fs::read_to_string(root.join("fuzz/Cargo.toml")).expect("a manifest");
    for (name, _) in TARGETS {
        assert!(corpus::seeds(name).len() > 1, "{name} has no recordings");
        assert!(programs.contains(&format!("name = \"{name}\"")), "fuzz/ has no {name}");
        assert!(root.join(format!("fuzz/fuzz_targets/{name}.rs")).is_file(), "{name}");
    }
    for entry in fs::read_dir(root.join("tests/fuzz/crashes")).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().expect("text");
        assert!(TARGETS.iter().any(|(target, _)| *target == name), "no target {name}");
    }
}

/// Writes what `cargo fuzz` begins with: `scripts/fuzz` runs this.
#[test]
#[ignore = "writes fuzz/corpus"]
fn recordings_are_written_out() {
    for (name, _) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        fs::create_dir_all(&folder).expect("a folder");
        for (nth, seed) in corpus::seeds(name).iter().enumerate() {
            fs::write(folder.join(format!("seed-{nth}")), seed).expect("a file");
        }
    }
}

#[test]
fn choices_of_success_copy_everything() {
    let mirror = [vec![0], [13, 39].repeat(30), vec![3, 8, 0, 0], [13, 39].repeat(3)].concat();
    assert_eq!(targets::pipeline::run(&mirror), [14, 14]);
    let capture = [vec![0, 0], [15, 19].repeat(30), [9, 3, 5, 5, 5, 15, 19].repeat(4)].concat();
    let (end, told) = targets::capture::run(&capture);
    assert_eq!((end, told), (0x3000 + 4 * 0x60, end));
}

#[test]
fn inputs_that_once_broke_a_promise_do_not_any_more() {
    for target in TARGETS {
        for (file, input) in corpus::crashes(target.0) {
            call(target, &input, &file);
        }
    }
}

#[test]
fn no_input_breaks_a_promise() {
    let seed = number("TIDEGATE_SEED").unwrap_or(20_240_229);
    let time = number("TIDEGATE_FUZZ_SECONDS").map_or(TIME, Duration::from_secs);
    let only = env::var("TIDEGATE_FUZZ_TARGET").ok();
    for target in TARGETS.iter().copied().filter(|t| only.as_ref().is_none_or(|only| t.0 == only)) {
        let seeds = corpus::seeds(target.0);
        seeds.iter().enumerate().for_each(|(nth, it)| call(target, it, &format!("seed {nth}")));
        let mut rng = fastrand::Rng::with_seed(seed);
        let (begun, mut runs) = (Instant::now(), 0_u64);
        while begun.elapsed() < time {
            let mut input = seeds[rng.usize(..seeds.len())].clone();
            mutate::damage(&mut rng, &mut input, &seeds);
            input.truncate(LARGEST);
            call(target, &input, &format!("TIDEGATE_SEED={seed}, input {runs}"));
            runs += 1;
        }
        eprintln!("{}: {} recordings, {runs} damaged ones", target.0, seeds.len());
        assert!(runs > 20, "{} is too slow to find anything: {runs} inputs", target.0);
    }
}

#[test]
fn any_bytes_to_the_admin_interface_are_answered_or_closed_and_change_nothing() {
    let mut rng = fastrand::Rng::with_seed(7);
    let seeds = corpus::seeds("admin");
    for round in 0..300 {
        let mut input = seeds[round % seeds.len()].clone();
        mutate::damage(&mut rng, &mut input, &seeds);
        call(("admin", targets::admin::request), &input, &format!("round {round}"));
    }
}
