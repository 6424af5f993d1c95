//! State files on a real disk: performs the operations of a save, reads all files at start, and
//! holds the directory's lock ([`lock`](mod@lock); S1, S3, S4).
//!
//! Decides nothing: [`Save`] has the order, `on_result` gets every error as it came. On io_uring
//! each operation is awaited. On monoio's epoll driver the same calls are plain blocking
//! syscalls (its files have no readiness to wait for), so a slow disk stalls that shard; that is
//! part of what the fallback costs. Reading and locking block and are for the control thread.
//! Temp files are neither read nor removed here: the next save replaces them.

#![allow(clippy::disallowed_methods, reason = "the driver's files live here")]

mod faults;
mod lock;

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use monoio::buf::IoBuf;
use monoio::fs::{File, OpenOptions};
use rkyv::util::AlignedVec;

use self::faults::Verdict;
pub use self::faults::{FAULTS_ENV, FaultRuleError, FileFaults};
pub use self::lock::{DirLock, LockError, holder, lock, lock_path};
use crate::statefile::format::{BLOCK, decode};
use crate::statefile::inspect::{FoundFile, StateError, parse_file_name};
use crate::statefile::store::{Errno, Op, Save, SaveError};

/// A larger file is not ours: ten thousand feeds with all their gap records fill a tenth of it.
const MAX_FILE_LEN: u64 = 1 << 30;

/// A state directory and whether it takes `O_DIRECT`. One per daemon, so that the fallback is
/// logged once.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    direct: AtomicBool,
}

impl StateDir {
    /// The directory at `path`; `O_DIRECT` is tried by the first save.
    pub fn new(path: impl Into<PathBuf>) -> StateDir {
        StateDir { path: path.into(), direct: AtomicBool::new(true) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// False once the file system refused `O_DIRECT`.
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// The save of `image` as the file of `source` on `shard`, for [`save`].
    pub fn begin(&self, source: &str, shard: u16, image: Vec<u8>) -> Save {
        Save::new(&self.path, source, shard, image, self.direct.load(Ordering::Relaxed))
    }

    fn remember_refusal(&self) {
        if self.direct.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                state_dir = %self.path.display(),
                "the file system refuses O_DIRECT; state files are written through the page cache"
            );
        }
    }
}

/// Performs one save to its end. Needs a monoio runtime, with timers if `faults` pause. Not to be
/// dropped half way: what it had done by then stays.
pub async fn save(dir: &StateDir, mut save: Save, faults: &FileFaults) -> Result<(), SaveError> {
    let mut open = OpenFile { file: None, image: Some(Image::copy_of(save.image())) };
    loop {
        let op = save.next_op();
        match op {
            Op::Done => {
                if save.refused_direct() {
                    dir.remember_refusal();
                }
                return Ok(());
            }
            Op::Failed(error) => return Err(error),
            _ => {}
        }
        let (pause, verdict) = faults.before(op.step(), save.file());
        if let Some(pause) = pause {
            monoio::time::sleep(pause).await;
        }
        let result = open.perform(&op, verdict).await;
        faults.log(op.step(), save.file(), &result);
        save.on_result(result.map_err(|e| Errno::from(&e)));
    }
}

/// Every state file of the directory, in order of name. A file that cannot be used is listed with
/// its error; `Err` only if the directory itself cannot be read. Blocks.
pub fn read_all(dir: &Path) -> Result<Vec<FoundFile>, StateError> {
    let unreadable = |e: io::Error| unreadable(dir, &e);
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        if let Some((source, shard)) = name.to_str().and_then(parse_file_name) {
            found.push(read_file(&entry.path(), source, shard));
        }
    }
    found.sort_by(|a, b| (&a.source, a.shard).cmp(&(&b.source, b.shard)));
    Ok(found)
}

/// Gives a state file another name, `<file>.aside-<stamp>`, which no start reads, and makes that
/// durable. Returns the new path. Blocks.
pub fn set_aside(file: &Path, stamp: u64) -> io::Result<PathBuf> {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".aside-{stamp}"));
    let aside = PathBuf::from(name);
    if aside.try_exists()? {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} exists already", aside.display()),
        ));
    }
    fs::rename(file, &aside)?;
    fs::File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(aside)
}

fn read_file(path: &Path, source: &str, shard: u16) -> FoundFile {
    let file = path.display().to_string();
    let state = read_bytes(path)
        .map_err(|e| unreadable(path, &e))
        .and_then(|bytes| decode(&bytes, &file).map_err(StateError::from));
    FoundFile { source: source.into(), shard, file, state }
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    // Asked before opening: opening a FIFO waits for its writer.
    let meta = fs::metadata(path)?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if meta.len() > MAX_FILE_LEN {
        return Err(io::Error::other(format!(
            "{} bytes long, at most {MAX_FILE_LEN} are read",
            meta.len()
        )));
    }
    fs::read(path)
}

fn unreadable(path: &Path, error: &io::Error) -> StateError {
    StateError::Unreadable { file: path.display().to_string(), why: error.to_string() }
}

/// The temp file while it is open, and the bytes to write.
struct OpenFile {
    file: Option<File>,
    /// `None` only while the kernel has it.
    image: Option<Image>,
}

impl OpenFile {
    async fn perform(&mut self, op: &Op, verdict: Verdict) -> io::Result<usize> {
        if let Verdict::Fail(errno) = verdict {
            if matches!(op, Op::Close) {
                self.file = None;
            }
            return Err(io::Error::from_raw_os_error(errno));
        }
        match op {
            Op::Open { path, direct, mode } => {
                let flags = if *direct { libc::O_DIRECT } else { 0 };
                let mut options = OpenOptions::new();
                options.write(true).create_new(true);
                options.mode(*mode);
                options.custom_flags(flags);
                self.file = Some(options.open(path).await?);
                Ok(0)
            }
            Op::Write { range } => {
                let limit = if let Verdict::Short(bytes) = verdict { bytes } else { usize::MAX };
                let end = range.end.min(range.start.saturating_add(limit));
                self.write(range.start..end).await
            }
            Op::Sync => self.file()?.sync_data().await.map(|()| 0),
            Op::Close => self.close().await.map(|()| 0),
            Op::Rename { from, to } => monoio::fs::rename(from, to).await.map(|()| 0),
            Op::SyncDir { path } => sync_dir(path).await.map(|()| 0),
            Op::Unlink { path } => monoio::fs::remove_file(path).await.map(|()| 0),
            Op::Done | Op::Failed(_) => Ok(0),
        }
    }

    async fn write(&mut self, range: Range<usize>) -> io::Result<usize> {
        if range.is_empty() {
            return Ok(0);
        }
        let image = self.image.take().ok_or_else(|| io::Error::from_raw_os_error(libc::EBUSY))?;
        let at = range.start as u64;
        let (result, slice) = match self.file() {
            Ok(file) => file.write_at(image.slice(range), at).await,
            Err(e) => (Err(e), image.slice(range)),
        };
        self.image = Some(slice.into_inner());
        result
    }

    /// Closes the file and says what the kernel said. monoio's own close has no result; closing
    /// a duplicate flushes the same file and has one.
    async fn close(&mut self) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        // SAFETY: `file` owns the descriptor and outlives this borrow.
        let twin = unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) }.try_clone_to_owned()?;
        // SAFETY: `into_raw_fd` gave the duplicate away; nothing else closes it.
        let closed = match unsafe { libc::close(twin.into_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        file.close().await?;
        closed
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }
}

async fn sync_dir(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(libc::O_DIRECTORY);
    let dir = options.open(path).await?;
    dir.sync_all().await?;
    dir.close().await
}

/// A copy of the image at an address that O_DIRECT takes.
struct Image(AlignedVec<BLOCK>);

impl Image {
    fn copy_of(bytes: &[u8]) -> Image {
        let mut aligned = AlignedVec::with_capacity(bytes.len());
        aligned.extend_from_slice(bytes);
        Image(aligned)
    }
}

// SAFETY: the bytes are on the heap, so their address stays while `Image` moves; `Image` hands
// out no way to grow or change them, and all `len` bytes are initialized.
unsafe impl IoBuf for Image {
    fn read_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{DeltaPiece, TopicName};
    use crate::statefile::format::{Fault, encode};
    use crate::statefile::{Counters, FeedState, SourceState};
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    fn state(generation: u64) -> SourceState {
        let feed = |partition| FeedState {
            upstream: TopicName::new("orders", "events"),
            downstream: TopicName::new("orders", "events"),
            partition,
            epoch: 0,
            sequence: generation,
            position: generation,
            deltas: vec![DeltaPiece { from_upstream: 0, delta: 0 }],
            last: None,
            upstream_created_at: 1,
            downstream_created_at: 2,
            clean_stop: false,
            counters: Counters::default(),
            gaps: Vec::new(),
            repeats: Vec::new(),
            first_count: None,
        };
        SourceState {
            source: "orders".into(),
            shard: 0,
            generation,
            saved_at: 3,
            feeds: (0..60).map(feed).collect(),
            captures: Vec::new(),
        }
    }

    fn on_legacy<F: Future>(work: F) -> F::Output {
        let runtime = monoio::RuntimeBuilder::<monoio::LegacyDriver>::new().enable_timer().build();
        runtime.unwrap().block_on(work)
    }

    /// `None`, with the reason printed, where io_uring is not permitted.
    fn on_uring<F: Future>(work: F) -> Option<F::Output> {
        let builder = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new();
        match builder.with_entries(64).enable_timer().build() {
            Ok(mut runtime) => Some(runtime.block_on(work)),
            Err(e) => {
                println!("skipped on io_uring: {e}");
                None
            }
        }
    }

    async fn save_generation(
        dir: &StateDir,
        generation: u64,
        faults: &FileFaults,
    ) -> Result<(), SaveError> {
        save(dir, dir.begin("orders", 0, encode(&state(generation))), faults).await
    }

    fn stored(dir: &Path) -> Option<u64> {
        let mut found = read_all(dir).unwrap();
        assert!(found.len() <= 1);
        found.pop().map(|file| {
            let read = file.state.unwrap();
            assert_eq!(read, state(read.generation));
            read.generation
        })
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Saves in the usual temporary directory and in one that is memory.
    fn in_directories(test: impl Fn(&Path)) {
        for root in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
            match tempfile::tempdir_in(&root) {
                Ok(dir) => test(dir.path()),
                Err(e) => println!("skipped in {}: {e}", root.display()),
            }
        }
    }

    async fn saves_replace_each_other_in(path: &Path) {
        let dir = StateDir::new(path);
        fs::write(path.join("orders.0.state.tmp"), b"left by a crash").unwrap();
        for generation in 1..4 {
            save_generation(&dir, generation, &FileFaults::default()).await.unwrap();
            assert_eq!(stored(path), Some(generation));
        }
        assert_eq!(names(path), ["orders.0.state"]);
        let meta = fs::metadata(path.join("orders.0.state")).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert_eq!(meta.len() % BLOCK as u64, 0);
        println!("O_DIRECT in {}: {}", path.display(), dir.direct.load(Ordering::Relaxed));
    }

    #[test]
    fn saves_replace_each_other_on_both_runtimes_and_file_systems() {
        in_directories(|dir| on_legacy(saves_replace_each_other_in(dir)));
        in_directories(|dir| on_uring(saves_replace_each_other_in(dir)).unwrap_or(()));
    }

    async fn every_fault_in(path: &Path) {
        let dir = StateDir::new(path);
        let mut durable = 1;
        save_generation(&dir, 1, &FileFaults::default()).await.unwrap();
        let mut next = 2;
        for step in ["open", "write", "sync", "close", "rename", "sync_dir"] {
            for (errno, full) in [("eio", false), ("enospc", true)] {
                let faults = FileFaults::parse(&format!("{step}:{errno}:times=1")).unwrap();
                let error = save_generation(&dir, next, &faults).await.unwrap_err();
                assert_eq!(matches!(error, SaveError::DiskFull { .. }), full, "{error}");
                assert!(error.to_string().contains(step), "{error}");
                let seen = stored(path).unwrap();
                assert!(seen == durable || (step == "sync_dir" && seen == next), "{step}: {seen}");
                save_generation(&dir, next + 1, &faults).await.unwrap();
                durable = next + 1;
                next += 2;
                assert_eq!(stored(path), Some(durable));
                assert_eq!(names(path), ["orders.0.state"]);
            }
        }
    }

    #[test]
    fn a_fault_at_any_step_keeps_the_old_file_and_the_next_save_succeeds() {
        in_directories(|dir| on_legacy(every_fault_in(dir)));
        in_directories(|dir| on_uring(every_fault_in(dir)).unwrap_or(()));
    }

    #[test]
    fn the_log_shows_the_order_of_one_save_and_of_a_failed_sync() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, log) = (tmp.path().join("state"), tmp.path().join("log"));
        fs::create_dir(&dir).unwrap();
        let rules = format!("log={}; sync:eio:skip=1:times=1", log.display());
        let faults = FileFaults::parse(&rules).unwrap();
        let state_dir = StateDir::new(&dir);
        state_dir.direct.store(false, Ordering::Relaxed);
        on_legacy(async {
            save_generation(&state_dir, 1, &faults).await.unwrap();
            save_generation(&state_dir, 2, &faults).await.unwrap_err();
        });
        let len = encode(&state(1)).len();
        let lines = [
            "open\tok".to_owned(),
            format!("write\tok {len}"),
            "sync\tok".to_owned(),
            "close\tok".to_owned(),
            "rename\tok".to_owned(),
            "sync_dir\tok".to_owned(),
            "open\tok".to_owned(),
            format!("write\tok {len}"),
            "sync\tInput/output error (os error 5)".to_owned(),
            "close\tok".to_owned(),
            "unlink\tok".to_owned(),
        ];
        let expected: String = lines.map(|line| format!("orders.0.state\t{line}\n")).concat();
        assert_eq!(fs::read_to_string(&log).unwrap(), expected);
    }

    #[test]
    fn short_writes_and_refused_direct_end_in_the_same_file() {
        // A disk refuses the write of 5000 bytes with O_DIRECT, memory does not.
        for (rules, refused) in [
            ("write:short=4096", false),
            ("write:short=5000", false),
            ("write:einval:times=1", true),
            ("open:einval:times=1", true),
        ] {
            in_directories(|path| {
                let faults = FileFaults::parse(rules).unwrap();
                let dir = StateDir::new(path);
                on_legacy(save_generation(&dir, 7, &faults)).unwrap();
                assert_eq!(stored(path), Some(7), "{rules}");
                assert!(!refused || !dir.direct.load(Ordering::Relaxed), "{rules}");
                on_legacy(save_generation(&dir, 8, &faults)).unwrap();
                assert_eq!(stored(path), Some(8), "{rules}");
            });
        }
    }

    #[test]
    fn a_pause_is_logged_before_it_is_waited_for() {
        let tmp = tempfile::tempdir().unwrap();
        let log = tmp.path().join("log");
        let rules = format!("log={};rename:pause=50", log.display());
        let faults = FileFaults::parse(&rules).unwrap();
        let dir = StateDir::new(tmp.path());
        let begun = Instant::now();
        on_legacy(save_generation(&dir, 1, &faults)).unwrap();
        assert!(begun.elapsed().as_millis() >= 50);
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.contains("rename\tpause 50\norders.0.state\trename\tok\n"), "{text}");
    }

    /// A real disk of 64 KiB: full, then freed, then read-only, then writable again.
    #[test]
    fn a_full_or_read_only_disk_fails_saves_until_it_is_neither() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().to_owned();
        // A thread of its own may have mounts of its own; they go with it.
        let end = std::thread::spawn(move || tiny_disk::full_then_read_only(&path)).join();
        if let Err(reason) = end.unwrap() {
            println!("skipped: {reason}");
        }
    }

    mod tiny_disk {
        use super::*;
        use std::ffi::CString;
        use std::os::unix::ffi::OsStrExt;
        use std::ptr::null;

        pub(super) fn full_then_read_only(path: &Path) -> Result<(), String> {
            // SAFETY: no pointers; concerns the calling thread only.
            if unsafe { libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS) } != 0 {
                return Err(format!("unshare: {}", io::Error::last_os_error()));
            }
            mount(Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE)?;
            mount(path, Some("size=64k,mode=700"), 0)?;
            let dir = StateDir::new(path);
            let none = FileFaults::default();
            let save = |generation| on_legacy(save_generation(&dir, generation, &none));
            save(1).unwrap();

            let filler = path.join("filler");
            let full = fs::write(&filler, vec![1; 1 << 20]).unwrap_err();
            assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
            for generation in 2..5 {
                let error = save(generation).unwrap_err();
                assert!(matches!(error, SaveError::DiskFull { .. }), "{error}");
                assert_eq!(stored(path), Some(1));
            }
            fs::remove_file(&filler).unwrap();
            save(5).unwrap();
            assert_eq!(names(path), ["orders.0.state"]);

            mount(path, None, libc::MS_REMOUNT | libc::MS_RDONLY)?;
            let error = save(6).unwrap_err().to_string();
            assert!(error.starts_with("open of") && error.contains("Read-only"), "{error}");
            assert_eq!(stored(path), Some(5));
            mount(path, None, libc::MS_REMOUNT)?;
            save(7).unwrap();
            assert_eq!(stored(path), Some(7));
            Ok(())
        }

        fn mount(at: &Path, options: Option<&str>, flags: libc::c_ulong) -> Result<(), String> {
            let at = CString::new(at.as_os_str().as_bytes()).unwrap();
            let options = options.map(|text| CString::new(text).unwrap());
            let data = options.as_ref().map_or(null(), |text| text.as_ptr().cast());
            // SAFETY: every string ends in NUL and outlives the call.
            let result = unsafe {
                libc::mount(c"tmpfs".as_ptr(), at.as_ptr(), c"tmpfs".as_ptr(), flags, data)
            };
            match result {
                0 => Ok(()),
                _ => Err(format!("mount: {}", io::Error::last_os_error())),
            }
        }
    }

    #[test]
    fn an_image_shows_its_bytes_wherever_it_is_moved() {
        for length in [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 1] {
            let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
            let image = *Box::new(Image::copy_of(&bytes));
            let (at, length) = (image.read_ptr(), image.bytes_init());
            // SAFETY: as the runtime reads it; `image` lives on.
            assert_eq!(unsafe { std::slice::from_raw_parts(at, length) }, bytes);
            assert!(length == 0 || at.addr().is_multiple_of(BLOCK), "aligned for O_DIRECT");
            drop(image);
        }
    }

    #[test]
    fn every_unusable_file_is_listed_with_its_error() {
        let tmp = tempfile::tempdir().unwrap();
        let path = |name: &str| tmp.path().join(name);
        let image = encode(&state(1));
        fs::write(path("orders.0.state"), &image).unwrap();
        fs::write(path("orders.0.state.tmp"), b"half").unwrap();
        fs::write(path("notes.txt"), b"not ours").unwrap();
        fs::write(path("a.0.state"), b"").unwrap();
        fs::write(path("b.0.state"), &image[..100]).unwrap();
        fs::write(path("c.0.state"), &image).unwrap();
        fs::create_dir(path("d.0.state")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("e.0.state")).unwrap();
        let found = read_all(tmp.path()).unwrap();
        let seen: Vec<_> = found.iter().map(|f| (&*f.source, f.shard)).collect();
        let expected = ["a", "b", "c", "d", "e", "orders"].map(|source| (source, 0));
        assert_eq!(seen, expected);
        let error = |n: usize| found[n].state.clone().unwrap_err();
        let fault = |n: usize| match error(n) {
            StateError::Format(e) => e.fault,
            other => panic!("{other}"),
        };
        assert_eq!(fault(0), Fault::Empty);
        assert!(matches!(fault(1), Fault::Cut { have: 100, .. }));
        assert!(matches!(fault(2), Fault::Inconsistent { .. }), "another source's file");
        for (n, why) in [(3, "not a regular file"), (4, "No such file")] {
            let text = error(n).to_string();
            assert!(text.contains(why) && text.contains(&found[n].file), "{text}");
        }
        assert_eq!(found[5].state, Ok(state(1)));
        assert!(path("orders.0.state.tmp").exists(), "left to the next save");
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_an_error_and_not_an_empty_one() {
        let tmp = tempfile::tempdir().unwrap();
        let missing = tmp.path().join("missing");
        let error = read_all(&missing).unwrap_err().to_string();
        assert!(error.contains("missing cannot be read: No such file"), "{error}");
    }

    #[test]
    fn a_file_set_aside_is_kept_and_no_longer_found() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("orders.0.state");
        fs::write(&file, b"damaged").unwrap();
        let aside = set_aside(&file, 17).unwrap();
        assert_eq!(names(tmp.path()), ["orders.0.state.aside-17"]);
        assert_eq!(fs::read(&aside).unwrap(), b"damaged");
        assert_eq!(read_all(tmp.path()).unwrap(), []);
        fs::write(&file, b"damaged again").unwrap();
        assert!(set_aside(&file, 17).is_err(), "never over another");
    }
}
