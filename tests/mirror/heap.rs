//! Which buffers are still in memory, asked of the allocator: a second owner that only watches
//! would change what the pipeline may do with them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;

use bytes::Bytes;

thread_local! {
    /// Address and length.
    static WATCHED: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// The system's allocator, with an eye on some buffers of this thread.
pub struct Heap;

/// Watches a buffer that was just made, until it is freed.
pub fn watch(buffer: &Bytes) {
    if !buffer.is_empty() {
        let entry = (buffer.as_ptr() as usize, buffer.len());
        WATCHED.with_borrow_mut(|watched| watched.push(entry));
    }
}

/// Forgets what an earlier world watched.
pub fn watch_nothing() {
    WATCHED.with_borrow_mut(Vec::clear);
}

/// Bytes of watched buffers that are still in memory.
pub fn watched_bytes() -> u64 {
    WATCHED.with_borrow(|watched| watched.iter().map(|(_, len)| *len as u64).sum())
}

/// These bytes lie in a watched buffer.
pub fn is_watched(bytes: &Bytes) -> bool {
    let at = bytes.as_ptr() as usize;
    WATCHED
        .with_borrow(|watched| watched.iter().any(|(from, len)| (*from..from + len).contains(&at)))
}

fn freed(at: *mut u8) {
    let _ = WATCHED.try_with(|watched| {
        // Busy while the list itself is moved.
        let Ok(mut watched) = watched.try_borrow_mut() else { return };
        if let Some(index) = watched.iter().position(|(from, _)| *from == at as usize) {
            watched.swap_remove(index);
        }
    });
}

// SAFETY: everything is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as asked.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        freed(at);
        // SAFETY: as asked.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        freed(at);
        // SAFETY: as asked.
        unsafe { System.realloc(at, layout, size) }
    }
}
