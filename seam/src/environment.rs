//! Whether the environment can be believed.
//!
//! Whoever starts a program chooses its environment. Where the program has rights that they have not (a
//! setuid or setgid file, or one with capabilities), a variable that names a place would let them choose
//! what it loads and writes with those rights.

use std::ffi::OsString;

/// Whether the process has rights that whoever started it has not.
pub fn elevated() -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // SAFETY: the function takes a number and gives one; it has no conditions.
        let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
        secure != 0
    }
    #[cfg(any(target_os = "macos", target_os = "ios"))]
    {
        // SAFETY: the function takes nothing and gives a number; it has no conditions.
        let tainted = unsafe { libc::issetugid() };
        tainted != 0
    }
    #[cfg(not(any(
        target_os = "linux",
        target_os = "android",
        target_os = "macos",
        target_os = "ios"
    )))]
    {
        false
    }
}

/// The value of an environment variable that names a file, a folder or a search path; nothing where it is
/// not set or empty, and nothing in a process that is [`elevated`].
pub fn path_variable(name: &str) -> Option<OsString> {
    if elevated() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}
