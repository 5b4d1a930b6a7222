//! What may befall the thread of a C program within a call.

use std::ffi::c_int;

/// While this exists, the thread is not cancelled. Its stack has Rust's frames, through which it cannot unwind.
pub(crate) struct Whole(c_int);

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, before: &mut c_int) -> c_int;
}

/// The value of `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

impl Whole {
    #[inline]
    pub(crate) fn new() -> Self {
        let mut before = 0;
        pthread_setcancelstate(DISABLE, &mut before);
        Self(before)
    }
}

impl Drop for Whole {
    #[inline]
    fn drop(&mut self) {
        pthread_setcancelstate(self.0, &mut 0);
    }
}
