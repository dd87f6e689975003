//! Objects behind the C pointers of these libraries: C's part first, the Rust part behind it.
#![expect(unsafe_code, reason = "C's pointers are trusted only here")]

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

#[repr(C)]
pub(crate) struct Object<C, T> {
    c: C,
    of: T,
}

/// C's pointer to an object, kept so that it can be given to C again.
pub(crate) struct CPtr<C>(pub(crate) *mut C);

impl<C> fmt::Debug for CPtr<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<C> Clone for CPtr<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for CPtr<C> {}

impl<C> PartialEq for CPtr<C> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

// SAFETY: this crate uses it as a number only; C may use its objects in any thread.
unsafe impl<C> Send for CPtr<C> {}
// SAFETY: as above.
unsafe impl<C> Sync for CPtr<C> {}

impl<C, T> Object<C, T> {
    /// Makes the object; `of` gets the pointer that C will have.
    pub(crate) fn make(c: C, of: impl FnOnce(CPtr<C>) -> T) -> *mut C {
        let place = Box::into_raw(Box::new(MaybeUninit::<Self>::uninit())).cast::<Self>();
        let of = of(CPtr(place.cast()));
        // SAFETY: the place was just allocated for this type and belongs to no one else.
        unsafe { place.write(Self { c, of }) };
        place.cast()
    }

    /// # Safety
    /// `c` came from [`make`](Self::make) of the same types and is not freed before the last use of
    /// the returned reference. C's functions have that contract with their callers.
    pub(crate) unsafe fn of<'a>(c: *mut C) -> &'a T {
        let object = c.cast::<Self>();
        // SAFETY: a live object, by this function's contract; C's part is not borrowed.
        unsafe { &(*object).of }
    }

    /// # Safety
    /// As [`of`](Self::of), and nothing uses the object afterwards.
    pub(crate) unsafe fn free(c: *mut C) -> T {
        // SAFETY: made by `Box::into_raw` in `make`, of the same type, and freed once.
        let object = unsafe { Box::from_raw(c.cast::<Self>()) };
        object.of
    }
}

/// A value to which C gets a pointer, valid as long as the object that contains it.
pub(crate) struct Place<C>(UnsafeCell<MaybeUninit<C>>);

impl<C> Default for Place<C> {
    fn default() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }
}

impl<C> fmt::Debug for Place<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.get().fmt(f)
    }
}

// SAFETY: only C reads the value, and C decides in which thread.
unsafe impl<C> Send for Place<C> {}
// SAFETY: as above.
unsafe impl<C> Sync for Place<C> {}

impl<C: Copy> Place<C> {
    pub(crate) fn put(&self, value: C) {
        // SAFETY: only called in calls of C that may change it; C makes one such call at a time.
        unsafe { self.0.get().cast::<C>().write(value) };
    }

    pub(crate) const fn pointer(&self) -> *mut C {
        self.0.get().cast()
    }
}

/// # Safety
/// `c` is NULL or points at a value that stays valid and unchanged while the returned reference is
/// used.
pub(crate) unsafe fn optional<'a, C>(c: *const C) -> Option<&'a C> {
    // SAFETY: this function's contract is that of `as_ref`.
    unsafe { c.as_ref() }
}
