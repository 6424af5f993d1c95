//! A disk as hostile as a real one may be, for the tests of a save.
//!
//! Written sectors reach the platter one by one, in any order, torn or not at all, until a sync.
//! A failed sync forgets them: the next one succeeds and they are still not there. Changes of
//! names survive a crash up to some point of their order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::store::{Errno, Op};

const SECTOR: usize = 512;

/// What goes wrong with one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// Not performed; a sync forgets what it should have written.
    Fails(i32),
    /// Performed and reported as failed.
    HappensAndFails(i32),
    /// Only this many bytes are taken.
    Short(usize),
    /// Not performed and reported as done.
    Lies,
}

/// What a crash leaves of a sector that was written and not synced.
#[derive(Clone, Copy, Debug)]
pub(super) enum Survival {
    Old,
    New,
    Torn,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    data: Vec<u8>,
    platter: Vec<u8>,
    dirty: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
enum Change {
    Link(PathBuf, usize),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf),
}

/// Where O_DIRECT is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Direct {
    Works,
    RefusedAtOpen,
    RefusedAtWrite,
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    platter_names: BTreeMap<PathBuf, usize>,
    pending: Vec<Change>,
    open: Option<(usize, bool)>,
    direct: Direct,
}

impl Disk {
    pub(super) fn new(direct: Direct) -> Disk {
        Disk {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            platter_names: BTreeMap::new(),
            pending: Vec::new(),
            open: None,
            direct,
        }
    }

    /// A file that is fully on the platter.
    pub(super) fn put(&mut self, path: &Path, bytes: &[u8]) {
        let inode = Inode { data: bytes.to_vec(), platter: bytes.to_vec(), dirty: BTreeSet::new() };
        self.inodes.push(inode);
        self.names.insert(path.to_owned(), self.inodes.len() - 1);
        self.platter_names = self.names.clone();
        self.pending.clear();
    }

    pub(super) fn read(&self, path: &Path) -> Option<&[u8]> {
        self.names.get(path).map(|inode| &*self.inodes[*inode].data)
    }

    /// How many changes of names a crash may lose.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn perform(
        &mut self,
        op: &Op,
        image: &[u8],
        fault: Option<Fault>,
    ) -> Result<usize, Errno> {
        match fault {
            Some(Fault::Fails(errno)) => {
                if let (Op::Sync, Some((inode, _))) = (op, self.open) {
                    self.inodes[inode].dirty.clear();
                }
                if matches!(op, Op::Close) {
                    self.open = None;
                }
                Err(Errno(errno))
            }
            Some(Fault::HappensAndFails(errno)) => {
                let _ = self.apply(op, image, usize::MAX);
                Err(Errno(errno))
            }
            Some(Fault::Lies) => Ok(0),
            Some(Fault::Short(bytes)) => self.apply(op, image, bytes),
            None => self.apply(op, image, usize::MAX),
        }
    }

    /// The machine after power comes back: the first `kept` changes of names, and of every
    /// unsynced sector what `survival` says.
    pub(super) fn crash(&self, kept: usize, mut survival: impl FnMut(usize) -> Survival) -> Disk {
        let mut names = self.platter_names.clone();
        self.pending.iter().take(kept).for_each(|change| change.apply(&mut names));
        let inodes = self.inodes.iter().map(|i| i.after_crash(&mut survival)).collect();
        Disk {
            inodes,
            platter_names: names.clone(),
            names,
            pending: Vec::new(),
            open: None,
            direct: self.direct,
        }
    }

    fn apply(&mut self, op: &Op, image: &[u8], limit: usize) -> Result<usize, Errno> {
        match op {
            Op::Open { path, direct, .. } => {
                assert!(self.open.is_none(), "one file at a time");
                if self.names.contains_key(path) {
                    return Err(Errno(libc::EEXIST));
                }
                self.inodes.push(Inode::default());
                self.change(Change::Link(path.clone(), self.inodes.len() - 1));
                if *direct && self.direct == Direct::RefusedAtOpen {
                    return Err(Errno(libc::EINVAL));
                }
                self.open = Some((self.inodes.len() - 1, *direct));
            }
            Op::Write { range } => {
                let (inode, direct) = self.open.expect("an open file");
                if direct {
                    assert!(range.start % 4096 == 0 && range.len() % 4096 == 0, "whole blocks");
                    if self.direct == Direct::RefusedAtWrite {
                        return Err(Errno(libc::EINVAL));
                    }
                }
                let taken = range.len().min(limit);
                self.inodes[inode].write(range.start, &image[range.start..range.start + taken]);
                return Ok(taken);
            }
            Op::Sync => {
                let (inode, _) = self.open.expect("an open file");
                self.inodes[inode].sync();
            }
            Op::Close => {
                self.open.take().expect("an open file");
            }
            Op::Rename { from, to } => {
                if !self.names.contains_key(from) {
                    return Err(Errno(libc::ENOENT));
                }
                self.change(Change::Rename(from.clone(), to.clone()));
            }
            Op::SyncDir { .. } => {
                self.platter_names = self.names.clone();
                self.pending.clear();
            }
            Op::Unlink { path } => {
                if !self.names.contains_key(path) {
                    return Err(Errno(libc::ENOENT));
                }
                self.change(Change::Unlink(path.clone()));
            }
            Op::Done | Op::Failed(_) => unreachable!("not an operation"),
        }
        Ok(0)
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.pending.push(change);
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Change::Link(path, inode) => {
                names.insert(path.clone(), *inode);
            }
            Change::Unlink(path) => {
                names.remove(path);
            }
            Change::Rename(from, to) => {
                let inode = names.remove(from).expect("changes keep their order");
                names.insert(to.clone(), inode);
            }
        }
    }
}

impl Inode {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len();
        self.data.resize(self.data.len().max(end), 0);
        self.data[at..end].copy_from_slice(bytes);
        self.dirty.extend(at / SECTOR..end.div_ceil(SECTOR));
    }

    fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            self.settle(sector, Survival::New);
        }
    }

    fn after_crash(&self, survival: &mut impl FnMut(usize) -> Survival) -> Inode {
        let mut after = self.clone();
        for sector in std::mem::take(&mut after.dirty) {
            after.settle(sector, survival(sector));
        }
        after.data = after.platter.clone();
        after
    }

    fn settle(&mut self, sector: usize, survival: Survival) {
        let start = sector * SECTOR;
        let end = (start + SECTOR).min(self.data.len());
        let end = match survival {
            Survival::Old => return,
            Survival::New => end,
            Survival::Torn => start + (end - start) / 2,
        };
        self.platter.resize(self.platter.len().max(end), 0);
        self.platter[start..end].copy_from_slice(&self.data[start..end]);
    }
}
