//! One safe write of a state file, as the order of its file operations.
//!
//! ```text
//!   open temp ──▶ write … ──▶ sync ──▶ close ──▶ rename ──▶ sync_dir ──▶ Done
//!     │  ▲          │           │        │         │           │
//!     │  └─ unlink ◀┤ O_DIRECT  └────────┴─────────┤           └──────▶ Failed
//!     └─────────────┘ refused                      └─▶ (close, unlink) ─▶ Failed
//! ```
//! Each save makes a new file (O_EXCL): a temp file left by a crash is removed, never read nor
//! written into. A failed sync ends its save for good; no file is ever synced twice (S3), because
//! the kernel may forget the lost pages and call the second sync good. Until the rename the old
//! file is untouched. Performs nothing: the driver does, and reports each result.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::format::BLOCK;
use super::inspect::file_name;

/// Permissions of a state file.
pub const MODE: u32 = 0o600;
/// How often one save starts an interrupted operation again.
const MAX_INTERRUPTS: u32 = 16;

/// Why a save failed. The old file is still in place, or the new one is and may not survive a
/// power loss; either is a whole state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// ENOSPC or EDQUOT at any step.
    #[error("disk full at {step} of {path}")]
    DiskFull {
        /// Step of the save.
        step: &'static str,
        /// File.
        path: String,
    },
    /// Anything else; a failed fsync fails its save for good (S3).
    #[error("{step} of {path} failed: {why}")]
    Io {
        /// Step of the save.
        step: &'static str,
        /// File.
        path: String,
        /// The kernel's words.
        why: String,
    },
}

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<&io::Error> for Errno {
    fn from(error: &io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Open for writing, `O_CREAT | O_EXCL`, and `O_DIRECT` if `direct`.
    Open {
        /// Temp file.
        path: PathBuf,
        /// Past the page cache.
        direct: bool,
        /// Permissions.
        mode: u32,
    },
    /// Write these bytes of the image at the same offset; the result is how many were taken.
    Write {
        /// Offsets in image and file; with O_DIRECT it starts at a block.
        range: Range<usize>,
    },
    /// `fdatasync` of the open file.
    Sync,
    /// Close the open file.
    Close,
    /// `rename`.
    Rename {
        /// Temp file.
        from: PathBuf,
        /// State file.
        to: PathBuf,
    },
    /// `fsync` of the directory.
    SyncDir {
        /// Directory.
        path: PathBuf,
    },
    /// Remove the temp file.
    Unlink {
        /// Temp file.
        path: PathBuf,
    },
    /// The new state is durable.
    Done,
    /// It is not.
    Failed(SaveError),
}

impl Op {
    /// Its name in errors, logs and fault rules.
    pub fn step(&self) -> &'static str {
        match self {
            Op::Open { .. } => "open",
            Op::Write { .. } => "write",
            Op::Sync => "sync",
            Op::Close => "close",
            Op::Rename { .. } => "rename",
            Op::SyncDir { .. } => "sync_dir",
            Op::Unlink { .. } => "unlink",
            Op::Done => "done",
            Op::Failed(_) => "failed",
        }
    }
}

/// One save under way.
#[derive(Debug)]
pub struct Save {
    dir: PathBuf,
    temp: PathBuf,
    file: PathBuf,
    image: Vec<u8>,
    direct: bool,
    refused_direct: bool,
    stale_removed: bool,
    interrupts: u32,
    step: Step,
}

#[derive(Clone, Debug)]
enum Step {
    Open,
    Write {
        done: usize,
    },
    Sync,
    Close,
    Rename,
    SyncDir,
    /// Close, then [`Step::Remove`].
    Abandon(After),
    /// Unlink, then what is said.
    Remove(After),
    Done,
    Failed(SaveError),
}

/// What follows when the temp file is gone.
#[derive(Clone, Debug)]
enum After {
    Reopen,
    Fail(SaveError),
}

impl Save {
    /// The save of `image` as the file of `source` on `shard`, past the page cache if `direct`.
    pub fn new(dir: &Path, source: &str, shard: u16, image: Vec<u8>, direct: bool) -> Save {
        let name = file_name(source, shard);
        debug_assert_eq!(image.len() % BLOCK, 0, "format::encode pads to whole blocks");
        Save {
            dir: dir.to_owned(),
            temp: dir.join(format!("{name}.tmp")),
            file: dir.join(name),
            image,
            direct,
            refused_direct: false,
            stale_removed: false,
            interrupts: 0,
            step: Step::Open,
        }
    }

    /// The bytes that [`Op::Write`] refers to.
    pub fn image(&self) -> &[u8] {
        &self.image
    }

    /// The state file, for logs.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// True once `O_DIRECT` was refused: later saves into this directory need not try it.
    pub fn refused_direct(&self) -> bool {
        self.refused_direct
    }

    /// The operation to perform now. Its result goes to [`Save::on_result`]; `Done` and `Failed`
    /// are final and have none.
    pub fn next_op(&self) -> Op {
        match &self.step {
            Step::Open => Op::Open { path: self.temp.clone(), direct: self.direct, mode: MODE },
            Step::Write { done } => Op::Write { range: *done..self.image.len() },
            Step::Sync => Op::Sync,
            Step::Close | Step::Abandon(_) => Op::Close,
            Step::Rename => Op::Rename { from: self.temp.clone(), to: self.file.clone() },
            Step::SyncDir => Op::SyncDir { path: self.dir.clone() },
            Step::Remove(_) => Op::Unlink { path: self.temp.clone() },
            Step::Done => Op::Done,
            Step::Failed(error) => Op::Failed(error.clone()),
        }
    }

    /// Takes the result of the operation of [`Save::next_op`]: the bytes taken by a write, any
    /// number for the others.
    pub fn on_result(&mut self, result: Result<usize, Errno>) {
        let result = match result {
            Err(Errno(libc::EINTR)) if self.may_repeat() => return,
            other => other,
        };
        self.step = match (self.step.clone(), result) {
            (Step::Open, result) => self.opened(result),
            (Step::Write { done }, result) => self.written(done, result),
            (Step::Sync, Ok(_)) => Step::Close,
            (Step::Sync, Err(e)) => Step::Abandon(After::Fail(self.error(e))),
            // Linux has closed the file when it says so, and its data is synced.
            (Step::Close, Ok(_) | Err(Errno(libc::EINTR))) => Step::Rename,
            (Step::Close | Step::Rename, Err(e)) => Step::Remove(After::Fail(self.error(e))),
            (Step::Rename, Ok(_)) => Step::SyncDir,
            (Step::SyncDir, Ok(_)) => Step::Done,
            (Step::SyncDir, Err(e)) => Step::Failed(self.error(e)),
            (Step::Abandon(after), _) => Step::Remove(after),
            (Step::Remove(after), result) => self.removed(after, result),
            (last @ (Step::Done | Step::Failed(_)), _) => last,
        };
    }

    fn opened(&mut self, result: Result<usize, Errno>) -> Step {
        match result {
            Ok(_) => Step::Write { done: 0 },
            // Removed once: another process that makes it again is a second daemon.
            Err(Errno(libc::EEXIST)) if !self.stale_removed => {
                self.stale_removed = true;
                Step::Remove(After::Reopen)
            }
            // The kernel may have made the file before it refused the flag.
            Err(e) if self.refuses_direct(e) => Step::Remove(After::Reopen),
            Err(e) => Step::Failed(self.error(e)),
        }
    }

    fn written(&mut self, done: usize, result: Result<usize, Errno>) -> Step {
        match result {
            Ok(n) if n >= self.image.len() - done => Step::Sync,
            Ok(n) => {
                let taken = done + n;
                // A direct write starts at a block; the part of one is written again.
                let next = if self.direct { taken - taken % BLOCK } else { taken };
                if next > done {
                    return Step::Write { done: next };
                }
                if self.refuses_direct(Errno(libc::EINVAL)) {
                    return Step::Abandon(After::Reopen);
                }
                let why = format!("nothing written at {done} of {} bytes", self.image.len());
                Step::Abandon(After::Fail(self.io_error(why)))
            }
            Err(e) if self.refuses_direct(e) => Step::Abandon(After::Reopen),
            Err(e) => Step::Abandon(After::Fail(self.error(e))),
        }
    }

    fn removed(&mut self, after: After, result: Result<usize, Errno>) -> Step {
        match (after, result) {
            // The save failed before; what is left behind is removed by the next one.
            (After::Fail(error), _) => Step::Failed(error),
            (After::Reopen, Ok(_) | Err(Errno(libc::ENOENT))) => Step::Open,
            (After::Reopen, Err(e)) => Step::Failed(self.error(e)),
        }
    }

    /// Falls back to buffered writes if this error means that the file system has no O_DIRECT.
    fn refuses_direct(&mut self, errno: Errno) -> bool {
        // EOPNOTSUPP and ENOTSUP are one number on Linux.
        let refused = self.direct && matches!(errno.0, libc::EINVAL | libc::EOPNOTSUPP);
        if refused {
            self.direct = false;
            self.refused_direct = true;
        }
        refused
    }

    fn may_repeat(&mut self) -> bool {
        // Not sync: what an interrupted one has lost is not known. Not close: it happened.
        let repeatable =
            !matches!(self.step, Step::Sync | Step::SyncDir | Step::Close | Step::Abandon(_));
        self.interrupts += u32::from(repeatable);
        repeatable && self.interrupts <= MAX_INTERRUPTS
    }

    fn error(&self, errno: Errno) -> SaveError {
        match errno.0 {
            libc::ENOSPC | libc::EDQUOT => {
                SaveError::DiskFull { step: self.next_op().step(), path: self.path() }
            }
            _ => self.io_error(errno.to_string()),
        }
    }

    fn io_error(&self, why: String) -> SaveError {
        SaveError::Io { step: self.next_op().step(), path: self.path(), why }
    }

    /// The file that the current step is about.
    fn path(&self) -> String {
        let path = match self.step {
            Step::SyncDir => &self.dir,
            Step::Rename => &self.file,
            _ => &self.temp,
        };
        path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::SourceState;
    use super::super::format::{decode, encode};
    use super::super::model_disk::{Direct, Disk, Fault, Survival};
    use super::super::samples::full_state;
    use super::*;
    use std::sync::LazyLock;

    const DIR: &str = "/state";
    const FILE: &str = "/state/orders.5.state";
    const TEMP: &str = "/state/orders.5.state.tmp";
    const ERRNOS: [i32; 5] = [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EACCES];
    const DIRECTS: [Direct; 3] = [Direct::Works, Direct::RefusedAtOpen, Direct::RefusedAtWrite];

    /// A state whose length in blocks changes from one generation to the next.
    fn state(generation: u64) -> SourceState {
        let mut state = SourceState { generation, ..full_state() };
        let feed = state.feeds[0].clone();
        for partition in 0..(generation % 3) as u32 * 10 {
            let mut more = feed.clone();
            more.partition = 100 + partition;
            state.feeds.push(more);
        }
        state
    }

    /// By generation, as many as the tests use.
    static IMAGES: LazyLock<Vec<Vec<u8>>> =
        LazyLock::new(|| (0..40).map(|generation| encode(&state(generation))).collect());

    fn save(generation: u64) -> Save {
        Save::new(Path::new(DIR), "orders", 5, IMAGES[generation as usize].clone(), true)
    }

    /// Runs one save to its end; `fault` sees the number of each operation, `after` each disk.
    fn run(
        disk: &mut Disk,
        save: &mut Save,
        mut fault: impl FnMut(usize, &Op) -> Option<Fault>,
        mut after: impl FnMut(&Disk),
    ) -> (Result<(), SaveError>, Vec<Op>) {
        let mut ops = Vec::new();
        loop {
            let op = save.next_op();
            match &op {
                Op::Done => return (Ok(()), ops),
                Op::Failed(error) => return (Err(error.clone()), ops),
                _ => {}
            }
            assert!(ops.len() < 50, "bounded: {ops:?}");
            let result = disk.perform(&op, save.image(), fault(ops.len(), &op));
            ops.push(op);
            save.on_result(result);
            after(disk);
        }
    }

    /// The generations that a reader may find after a power loss right now. `Err` names a file
    /// that does not decode.
    fn generations_after_crash(disk: &Disk) -> Result<Vec<Option<u64>>, String> {
        let mut found = Vec::new();
        for kept in 0..=disk.pending() {
            for seed in 0..5 {
                let mut rng = fastrand::Rng::with_seed(seed);
                let after = disk.crash(kept, |_| match seed {
                    0 => Survival::Old,
                    1 => Survival::New,
                    2 => Survival::Torn,
                    _ => {
                        *rng.choice([Survival::Old, Survival::New, Survival::Torn].iter()).unwrap()
                    }
                });
                found.push(generation(&after)?);
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    fn generation(disk: &Disk) -> Result<Option<u64>, String> {
        let Some(bytes) = disk.read(Path::new(FILE)) else { return Ok(None) };
        // What equals a whole image decodes; this is run a hundred thousand times.
        if let Some(known) = IMAGES.iter().position(|image| image == bytes) {
            return Ok(Some(known as u64));
        }
        let read = decode(bytes, FILE).map_err(|e| e.to_string())?;
        assert_eq!(read, state(read.generation), "whole, whatever generation it is");
        Ok(Some(read.generation))
    }

    fn disk(direct: Direct, old: Option<u64>, stale_temp: bool) -> Disk {
        let mut disk = Disk::new(direct);
        if let Some(old) = old {
            disk.put(Path::new(FILE), &encode(&state(old)));
        }
        if stale_temp {
            disk.put(Path::new(TEMP), &encode(&state(99))[..1000]);
        }
        disk
    }

    #[test]
    fn order_of_one_save_is_write_sync_rename_syncdir() {
        let mut disk = disk(Direct::Works, Some(1), false);
        let (result, ops) = run(&mut disk, &mut save(2), |_, _| None, |_| ());
        let image = encode(&state(2)).len();
        let (temp, file) = (PathBuf::from(TEMP), PathBuf::from(FILE));
        assert_eq!(result, Ok(()));
        assert_eq!(
            ops,
            [
                Op::Open { path: temp.clone(), direct: true, mode: 0o600 },
                Op::Write { range: 0..image },
                Op::Sync,
                Op::Close,
                Op::Rename { from: temp, to: file },
                Op::SyncDir { path: DIR.into() },
            ]
        );
    }

    #[test]
    fn a_crash_after_any_step_leaves_the_old_or_the_new_state() {
        for direct in DIRECTS {
            for (old, stale) in [(None, false), (None, true), (Some(1), false), (Some(4), true)] {
                let mut disk = disk(direct, old, stale);
                let mut save = save(5);
                let (result, _) = run(
                    &mut disk,
                    &mut save,
                    |_, _| None,
                    |disk| {
                        let found = generations_after_crash(disk).unwrap();
                        assert!(found.iter().all(|g| *g == old || *g == Some(5)), "{found:?}");
                        assert!(generation(disk).unwrap().max(old) >= old, "running reader");
                    },
                );
                assert_eq!(result, Ok(()));
                assert_eq!(save.refused_direct(), direct != Direct::Works);
                assert_eq!(generations_after_crash(&disk).unwrap(), [Some(5)], "durable");
            }
        }
    }

    #[test]
    fn torn_temp_file_never_wins() {
        let mut disk = disk(Direct::Works, Some(1), true);
        let eio = |_: usize, op: &Op| matches!(op, Op::Sync).then_some(Fault::Fails(libc::EIO));
        assert!(run(&mut disk, &mut save(2), eio, |_| ()).0.is_err());
        let after = disk.crash(disk.pending(), |_| Survival::Torn);
        assert_eq!(generation(&after), Ok(Some(1)));
        let mut after = after;
        assert_eq!(run(&mut after, &mut save(3), |_, _| None, |_| ()).0, Ok(()));
        assert_eq!(generations_after_crash(&after).unwrap(), [Some(3)]);
    }

    /// One fault at every step, of every kind, with and without a second one right behind it.
    #[test]
    fn an_error_at_any_step_keeps_a_whole_state_and_the_next_save_succeeds() {
        for case in 0..3 * 2 * 2 * 2 * 2 {
            let (direct, bit) = (DIRECTS[case / 16], |n: usize| case >> n & 1 == 1);
            let errno = if bit(0) { libc::ENOSPC } else { libc::EIO };
            for step in 0..10 {
                one_fault(direct, bit(1), errno, bit(2), step..=step + usize::from(bit(3)));
            }
        }
    }

    fn one_fault(
        direct: Direct,
        stale: bool,
        errno: i32,
        happens: bool,
        steps: std::ops::RangeInclusive<usize>,
    ) {
        let mut disk = disk(direct, Some(1), stale);
        let fault = |n: usize, op: &Op| {
            // A file that failed to open is not open, nor is a failed sync half a sync.
            let happens = happens && !matches!(op, Op::Open { .. } | Op::Sync);
            let fault = if happens { Fault::HappensAndFails(errno) } else { Fault::Fails(errno) };
            steps.contains(&n).then_some(fault)
        };
        let (result, ops) = run(&mut disk, &mut save(2), fault, |disk| {
            let found = generations_after_crash(disk).unwrap();
            assert!(found.iter().all(|g| matches!(g, Some(1 | 2))), "{found:?}");
        });
        match (&result, ops.get(*steps.start())) {
            (Err(error), Some(_)) => {
                let full = matches!(error, SaveError::DiskFull { .. });
                assert_eq!(full, errno == libc::ENOSPC, "{error}");
                let failed = &ops[*steps.start()..ops.len().min(steps.end() + 1)];
                let named = failed.iter().any(|op| error.to_string().contains(op.step()));
                assert!(named, "{error} at {failed:?}");
            }
            // Closing a file that is given up for a buffered one may fail.
            (Ok(()), Some(Op::Close)) if direct == Direct::RefusedAtWrite => {}
            (Ok(()), Some(op)) => panic!("{op:?} failed and the save succeeded: {ops:?}"),
            (result, None) => assert_eq!(*result, Ok(()), "the save ended before the fault"),
        }
        let syncs = ops.iter().filter(|op| matches!(op, Op::Sync)).count();
        assert!(syncs <= 1, "{ops:?}");

        let (result, _) = run(&mut disk, &mut save(3), |_, _| None, |_| ());
        assert_eq!(result, Ok(()), "after {ops:?}");
        assert_eq!(generations_after_crash(&disk).unwrap(), [Some(3)]);
        assert!(disk.read(Path::new(TEMP)).is_none());
    }

    #[test]
    fn a_full_disk_or_quota_is_told_from_other_errors() {
        for errno in ERRNOS {
            let fault = |n: usize, _: &Op| (n == 1).then_some(Fault::Fails(errno));
            let error = run(&mut disk(Direct::Works, None, false), &mut save(2), fault, |_| ()).0;
            let full = matches!(error, Err(SaveError::DiskFull { .. }));
            assert_eq!(full, [libc::ENOSPC, libc::EDQUOT].contains(&errno), "{error:?}");
        }
    }

    #[test]
    fn a_failed_sync_is_never_followed_by_another_of_the_same_file() {
        let fails = |_: usize, op: &Op| matches!(op, Op::Sync).then_some(Fault::Fails(libc::EIO));
        let mut disk = disk(Direct::Works, Some(1), false);
        let (result, ops) = run(&mut disk, &mut save(2), fails, |_| ());
        let steps: Vec<_> = ops.iter().map(Op::step).collect();
        assert_eq!(steps, ["open", "write", "sync", "close", "unlink"]);
        let error = result.unwrap_err().to_string();
        assert_eq!(
            error,
            "sync of /state/orders.5.state.tmp failed: Input/output error (os error 5)"
        );
        assert_eq!(generation(&disk), Ok(Some(1)));

        // Even when the temp file could not be removed, the next save makes a new one.
        let mut again = disk.clone();
        again.put(Path::new(TEMP), b"left behind");
        let (result, ops) = run(&mut again, &mut save(3), |_, _| None, |_| ());
        let steps: Vec<_> = ops.iter().map(Op::step).collect();
        assert_eq!(steps[..3], ["open", "unlink", "open"]);
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn short_writes_go_on_at_whole_blocks() {
        let image = encode(&state(2)).len();
        assert!(image >= 2 * BLOCK);
        let short = |n: usize, _: &Op| (n == 1).then_some(Fault::Short(BLOCK + 700));
        let mut disk = disk(Direct::Works, None, false);
        let (result, ops) = run(&mut disk, &mut save(2), short, |_| ());
        assert_eq!(result, Ok(()));
        assert_eq!(ops[2], Op::Write { range: BLOCK..image });
        assert_eq!(generation(&disk), Ok(Some(2)));
    }

    #[test]
    fn direct_writes_that_take_nothing_fall_back_and_buffered_ones_fail() {
        let stuck = |_: usize, op: &Op| matches!(op, Op::Write { .. }).then_some(Fault::Short(100));
        let mut disk = disk(Direct::Works, None, false);
        let mut save_2 = save(2);
        let (result, _) = run(&mut disk, &mut save_2, stuck_until_buffered(), |_| ());
        assert_eq!((result, save_2.refused_direct()), (Ok(()), true));
        assert_eq!(generation(&disk), Ok(Some(2)));

        // Buffered ones advance by any number of bytes, but not by none.
        let mut save_4 = Save::new(Path::new(DIR), "orders", 5, vec![0; BLOCK], false);
        let (result, ops) = run(&mut disk, &mut save_4, stuck, |_| ());
        assert_eq!((result, ops.len()), (Ok(()), 1 + BLOCK.div_ceil(100) + 4));
        let none = |_: usize, op: &Op| matches!(op, Op::Write { .. }).then_some(Fault::Short(0));
        let mut save_5 = Save::new(Path::new(DIR), "orders", 5, vec![0; BLOCK], false);
        let error = run(&mut disk, &mut save_5, none, |_| ()).0.unwrap_err();
        assert!(error.to_string().contains("nothing written at 0 of 4096 bytes"), "{error}");
    }

    fn stuck_until_buffered() -> impl FnMut(usize, &Op) -> Option<Fault> {
        let mut direct = false;
        move |_, op| {
            if let Op::Open { direct: d, .. } = op {
                direct = *d;
            }
            (direct && matches!(op, Op::Write { .. })).then_some(Fault::Short(100))
        }
    }

    #[test]
    fn interrupted_operations_start_again_and_not_for_ever() {
        let once =
            |n: usize, _: &Op| (n.is_multiple_of(2) && n < 4).then_some(Fault::Fails(libc::EINTR));
        let mut on_disk = disk(Direct::Works, Some(1), false);
        assert_eq!(run(&mut on_disk, &mut save(2), once, |_| ()).0, Ok(()));

        let always = |_: usize, _: &Op| Some(Fault::Fails(libc::EINTR));
        let (result, ops) = run(&mut on_disk, &mut save(3), always, |_| ());
        assert!(result.is_err() && ops.len() <= 1 + MAX_INTERRUPTS as usize, "{ops:?}");

        let sync = |_: usize, op: &Op| matches!(op, Op::Sync).then_some(Fault::Fails(libc::EINTR));
        assert!(run(&mut on_disk, &mut save(4), sync, |_| ()).0.is_err());
        assert_eq!(generation(&on_disk), Ok(Some(2)));
    }

    /// I4 over long histories: what was reported durable is never lost, whatever fails.
    #[test]
    fn generations_only_grow_through_faults_and_crashes() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut disk = disk(DIRECTS[rng.usize(..3)], None, false);
            let (mut durable, mut next) = (None, 1);
            for _ in 0..30 {
                let fault = |rng: &mut fastrand::Rng, op: &Op| match (rng.u8(..20), op) {
                    (0, Op::Open { .. } | Op::Sync) => {
                        Some(Fault::Fails(*rng.choice(&ERRNOS).unwrap()))
                    }
                    (0, _) => Some(Fault::HappensAndFails(*rng.choice(&ERRNOS).unwrap())),
                    (1, _) => Some(Fault::Fails(*rng.choice(&ERRNOS).unwrap())),
                    (2, Op::Write { .. }) => Some(Fault::Short(rng.usize(..20_000))),
                    (3, _) => Some(Fault::Fails(libc::EINTR)),
                    _ => None,
                };
                let cut = rng.usize(..12);
                let mut crashed = None;
                let mut faults = rng.fork();
                let mut n = 0;
                let (result, _) = run(
                    &mut disk,
                    &mut save(next),
                    |_, op| fault(&mut faults, op),
                    |disk| {
                        n += 1;
                        if n == cut {
                            crashed = Some(disk.clone());
                        }
                    },
                );
                if let Some(before) = crashed {
                    let kept = rng.usize(..=before.pending());
                    disk = before.crash(kept, |_| {
                        *rng.choice([Survival::Old, Survival::New, Survival::Torn].iter()).unwrap()
                    });
                } else if result.is_ok() {
                    durable = Some(next);
                }
                let found = generation(&disk).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                assert!(found >= durable, "seed {seed}: {found:?} after {durable:?}");
                next += 1;
            }
        }
    }

    /// The model must be able to tell a bad order from a good one.
    #[test]
    fn the_model_finds_a_save_that_skips_a_sync() {
        for lie in ["sync", "sync_dir"] {
            let lies = |_: usize, op: &Op| (op.step() == lie).then_some(Fault::Lies);
            let mut disk = disk(Direct::Works, Some(1), false);
            assert_eq!(run(&mut disk, &mut save(2), lies, |_| ()).0, Ok(()));
            assert_ne!(generations_after_crash(&disk), Ok(vec![Some(2)]), "{lie}");
        }
    }
}
