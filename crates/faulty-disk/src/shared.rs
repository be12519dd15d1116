//! A disk as calls reach it, from any thread.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{c_int, c_uint, mode_t, off64_t};
use rand::RngExt;

use crate::fault::{FaultKind, Operation, Verdict};
use crate::model::{DataChange, FileContent, Target};
use crate::raw::{self, Outcome, c_path};
use crate::state::{DiskState, put_file};
use crate::survival::{Mercy, surviving_content};

/// Where bytes are written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WriteAt {
    /// At the descriptor's position, which moves on.
    Position,
    Offset(off64_t),
}

/// What a descriptor refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    File(u64),
    Folder(String),
}

#[derive(Debug)]
pub(crate) struct SharedDisk {
    pub(crate) root: PathBuf,
    pub(crate) state: Mutex<DiskState>,
}

impl SharedDisk {
    pub(crate) fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn c_path(&self, name: &str) -> CString {
        c_path(self.root.join(name).as_os_str().as_bytes())
    }

    /// Gives a real file this content.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        put_file(&self.c_path(name), bytes);
    }

    pub(crate) fn node(&self, number: u64) -> Option<Node> {
        let state = self.lock();
        if let Some(name) = state.folders.get(&number) {
            return Some(Node::Folder(name.clone()));
        }
        state.numbers.get(&number).copied().map(Node::File)
    }

    pub(crate) fn open(&self, name: &str, path: &CStr, flags: c_int, mode: mode_t) -> Outcome<c_int> {
        let mut state = self.lock();
        let before = raw::facts_of_path(path);
        let operation = match before {
            Some(_) if flags & libc::O_EXCL != 0 => return Err(libc::EEXIST),
            None if flags & libc::O_CREAT == 0 => return raw::open(libc::AT_FDCWD, path, flags, mode),
            None => Operation::Create,
            Some(_) => Operation::Open,
        };
        let call = |state: &mut DiskState| {
            let descriptor = raw::open(libc::AT_FDCWD, path, flags, mode)?;
            if let Some(facts) = raw::facts(descriptor).filter(|facts| facts.is_file) {
                let file = match before {
                    None => state.number_anew(facts.number),
                    Some(_) => state.number(facts.number),
                };
                state.names.insert(file, name.to_owned());
                if before.is_none() {
                    state.model.files.insert(file, FileContent::default());
                    state.model.change_names(vec![(name.to_owned(), Some(Target::File(file)))]);
                } else if flags & libc::O_TRUNC != 0 {
                    state.model.change_data(file, DataChange::Truncate(0));
                }
            }
            Ok(descriptor)
        };
        state.perform((operation, name), (0, 0), call, |descriptor| raw::close(*descriptor))
    }

    pub(crate) fn write(&self, file: u64, descriptor: c_int, to: WriteAt, bytes: &[u8]) -> Outcome<usize> {
        let mut state = self.lock();
        let name = state.name_of(file);
        let at = match to {
            WriteAt::Position => raw::position(descriptor),
            WriteAt::Offset(at) => u64::try_from(at).map_err(|_| libc::EINVAL)?,
        };
        let write = |state: &mut DiskState, bytes: &[u8]| {
            let count = match to {
                WriteAt::Position => raw::write(descriptor, bytes)?,
                WriteAt::Offset(at) => raw::write_at(descriptor, bytes, at)?,
            };
            state.model.change_data(file, DataChange::Write { at, bytes: bytes[..count].to_vec() });
            Ok(count)
        };
        match state.judge((Operation::Write, &name), (at, bytes.len() as u64)) {
            Verdict::Pass => write(&mut state, bytes),
            Verdict::Fail(error) => Err(error),
            Verdict::Short if bytes.len() > 1 => {
                state.count((Operation::Write, &name), FaultKind::Short);
                let count = state.chance.random_range(1..bytes.len());
                write(&mut state, &bytes[..count])
            }
            Verdict::Short => write(&mut state, bytes),
            Verdict::Crash { crash, is_done } => {
                if is_done && !bytes.is_empty() {
                    let count = state.chance.random_range(1..=bytes.len());
                    write(&mut state, &bytes[..count])?;
                }
                state.go_down((Operation::Write, &name), crash);
                Err(libc::EIO)
            }
        }
    }

    pub(crate) fn truncate(&self, file: u64, descriptor: c_int, length: off64_t) -> Outcome<()> {
        let mut state = self.lock();
        let name = state.name_of(file);
        let to = u64::try_from(length).map_err(|_| libc::EINVAL)?;
        let call = |state: &mut DiskState| {
            raw::truncate(descriptor, length)?;
            state.model.change_data(file, DataChange::Truncate(to));
            Ok(())
        };
        state.perform((Operation::Truncate, &name), (to, 0), call, |()| {})
    }

    pub(crate) fn sync(&self, node: &Node) -> Outcome<()> {
        let mut state = self.lock();
        match node {
            Node::Folder(name) => {
                let call = |state: &mut DiskState| {
                    state.sync_folder(name);
                    Ok(())
                };
                state.perform((Operation::SyncFolder, name), (0, 0), call, |()| {})
            }
            Node::File(file) => {
                let name = state.name_of(*file);
                let call = |state: &mut DiskState| {
                    state.model.sync_file(*file);
                    Ok(())
                };
                let was_up = state.down.is_none();
                let result = state.perform((Operation::Sync, &name), (0, 0), call, |()| {});
                if result.is_err() && was_up && state.down.is_none() {
                    self.drop_unsynced(&mut state, *file, &name);
                }
                result
            }
        }
    }

    /// A sync failed: what did not arrive will never arrive. The pages may be gone, too.
    fn drop_unsynced(&self, state: &mut DiskState, file: u64, name: &str) {
        let DiskState { model, chance, .. } = state;
        let mercy = Mercy::draw(chance);
        let content = model.files.entry(file).or_default();
        let (durable, losses) = surviving_content(content, mercy, chance);
        *content = FileContent { durable, pending: Vec::new() };
        let are_pages_gone: bool = chance.random();
        if are_pages_gone && model.live.get(name) == Some(&Target::File(file)) {
            self.put(name, &content.durable);
        }
        state.count_loss("pages of a failed sync", name, losses.pages + losses.torn + losses.truncations);
    }

    pub(crate) fn make_folder(&self, name: &str, path: &CStr, mode: mode_t) -> Outcome<()> {
        let mut state = self.lock();
        if raw::facts_of_path(path).is_some() {
            return Err(libc::EEXIST);
        }
        let call = |state: &mut DiskState| {
            raw::make_folder(libc::AT_FDCWD, path, mode)?;
            let facts = raw::facts_of_path(path);
            state.folders.extend(facts.map(|facts| (facts.number, name.to_owned())));
            state.model.change_names(vec![(name.to_owned(), Some(Target::Folder))]);
            Ok(())
        };
        state.perform((Operation::MakeFolder, name), (0, 0), call, |()| {})
    }

    pub(crate) fn unlink(&self, name: &str, path: &CStr, flags: c_int) -> Outcome<()> {
        let mut state = self.lock();
        if raw::facts_of_path(path).is_none() {
            return Err(libc::ENOENT);
        }
        let call = |state: &mut DiskState| {
            raw::unlink(libc::AT_FDCWD, path, flags)?;
            state.folders.retain(|_, folder| folder != name);
            state.model.change_names(vec![(name.to_owned(), None)]);
            Ok(())
        };
        state.perform((Operation::Unlink, name), (0, 0), call, |()| {})
    }

    pub(crate) fn link(&self, from: (&str, &CStr), to: (&str, &CStr)) -> Outcome<()> {
        let mut state = self.lock();
        let Some(target) = state.model.live.get(from.0).copied() else { return Err(libc::ENOENT) };
        if raw::facts_of_path(to.1).is_some() {
            return Err(libc::EEXIST);
        }
        let call = |state: &mut DiskState| {
            raw::link((libc::AT_FDCWD, from.1), (libc::AT_FDCWD, to.1), 0)?;
            state.model.change_names(vec![(to.0.to_owned(), Some(target))]);
            Ok(())
        };
        state.perform((Operation::Link, to.0), (0, 0), call, |()| {})
    }

    pub(crate) fn rename(&self, from: (&str, &CStr), to: (&str, &CStr), flags: c_uint) -> Outcome<()> {
        let mut state = self.lock();
        let Some(target) = state.model.live.get(from.0).copied() else { return Err(libc::ENOENT) };
        let call = |state: &mut DiskState| {
            raw::rename((libc::AT_FDCWD, from.1), (libc::AT_FDCWD, to.1), flags)?;
            let mut sets = vec![(to.0.to_owned(), Some(target)), (from.0.to_owned(), None)];
            let inside = format!("{}/", from.0);
            for (name, target) in state.model.live.range(inside.clone()..) {
                let Some(rest) = name.strip_prefix(&inside) else { break };
                sets.push((format!("{}/{rest}", to.0), Some(*target)));
                sets.push((name.clone(), None));
            }
            state.model.change_names(sets);
            for name in state.folders.values_mut() {
                if name == from.0 {
                    to.0.clone_into(name);
                } else if let Some(rest) = name.strip_prefix(&inside) {
                    *name = format!("{}/{rest}", to.0);
                }
            }
            Ok(())
        };
        state.perform((Operation::Rename, to.0), (0, 0), call, |()| {})
    }
}
