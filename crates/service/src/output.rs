//! Standard output and standard error of command-line programs.
//!
//! `println!` panics when the reader of a pipe has closed it, as in `program | head -1`. The
//! default action of SIGPIPE is not a solution, because the programs also write to sockets. A peer
//! that closes a socket must not end the process.
//!
//! All output of a program therefore uses [`out!`](crate::out), [`outln!`](crate::outln),
//! [`Output`] and [`errln!`](crate::errln), in code that [`run`] calls.
//!
//! If a write to standard output fails because its reader is gone, the program ends silently with
//! [`STATUS_CLOSED`]. After any other failed write it ends with status 1 and a message. The stack
//! is unwound, so that values are dropped and keys are wiped. Failed writes to standard error are
//! ignored, because the failure cannot be reported.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use crate::{errln, out, outln};

/// Exit status of a program whose standard output has no reader. A shell reports the same status
/// for SIGPIPE.
pub const STATUS_CLOSED: u8 = 128 + 13;

/// Prints to standard output, like `print!`.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}

/// Prints a line to standard output, like `println!`.
#[macro_export]
macro_rules! outln {
    () => { $crate::output::print_line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::print_line(format_args!($($text)*)) };
}

/// Prints a line to standard error, like `eprintln!`.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::print_error_line(format_args!($($text)*)) };
}

/// A write to standard output failed. Unwinding carries this value from the write to [`run`].
struct OutputFailed(io::Error);

/// Standard output as a writer. A failed write ends the program, as for [`out!`](crate::out).
#[derive(Debug, Default)]
pub struct Output;

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Writes all bytes, so that a later write cannot hide the error of a partial write.
        end_if_failed(io::stdout().lock().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        end_if_failed(io::stdout().lock().flush());
        Ok(())
    }
}

/// Prints to standard output. [`out!`](crate::out) calls this.
pub fn print(text: fmt::Arguments<'_>) {
    end_if_failed(io::stdout().lock().write_fmt(text));
}

/// Prints a line to standard output. [`outln!`](crate::outln) calls this.
pub fn print_line(text: fmt::Arguments<'_>) {
    end_if_failed(writeln!(io::stdout().lock(), "{text}"));
}

/// Prints a line to standard error. [`errln!`](crate::errln) calls this. Escapes control characters
/// except line breaks and tabs. The text can come from another program, such as an engine's error,
/// and must not control the terminal.
pub fn print_error_line(text: fmt::Arguments<'_>) {
    let _ = io::stderr()
        .lock()
        .write_all(format!("{}\n", printable(&text.to_string())).as_bytes());
}

/// Returns true if a terminal displays a character and does not interpret it. Line breaks and tabs
/// count as displayed.
#[must_use]
pub fn is_printable(c: char) -> bool {
    match c {
        '\n' | '\t' => true,
        // Changes the direction of the following text.
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
        _ => !c.is_control(),
    }
}

/// Escapes the characters of a text that a terminal would interpret instead of displaying.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return text.into();
    }
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if is_printable(c) {
            printable.push(c);
        } else {
            printable.extend(c.escape_default());
        }
    }
    printable.into()
}

/// Unwinds the stack to [`run`] after a failed write.
fn end_if_failed(written: io::Result<()>) {
    if let Err(error) = written
        && !std::thread::panicking()
    {
        // The panic hook is not called, because it would print a backtrace.
        resume_unwind(Box::new(OutputFailed(error)));
    }
}

/// Runs the program `name` and returns its exit status. If standard output failed, returns the
/// status for this failure.
pub fn run(name: &str, program: impl FnOnce() -> ExitCode) -> ExitCode {
    let payload = match catch_unwind(AssertUnwindSafe(program)) {
        Ok(status) => return status,
        Err(payload) => payload,
    };
    match payload.downcast::<OutputFailed>() {
        Ok(failed) if failed.0.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(STATUS_CLOSED),
        Ok(failed) => {
            errln!("{name}: standard output: {}", failed.0);
            ExitCode::FAILURE
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// Returns true if an error was caused by a closed standard output. Some cause of the error must be
/// a broken pipe, and standard output must be closed. Both are checked, because a connection that a
/// peer closed results in the same error.
#[must_use]
pub fn is_closed_output(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let broken = error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        if broken {
            return has_no_reader();
        }
        cause = error.source();
    }
    false
}

/// Returns true if standard output is a pipe or a socket whose other end is closed.
fn has_no_reader() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut polled, Some(&at_once)).is_ok()
        && polled[0]
            .revents()
            .intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, expected) in [
            ("two\nlines\tand ümläut", "two\nlines\tand ümläut"),
            ("\x1b[2Jgone\x07", "\\u{1b}[2Jgone\\u{7}"),
            ("over\rwritten", "over\\rwritten"),
            ("turned \u{202e}fdp.exe", "turned \\u{202e}fdp.exe"),
            ("c1 \u{9b}31m", "c1 \\u{9b}31m"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }

    #[test]
    fn statuses_of_a_program_and_of_failed_output() {
        let failing = |kind: io::ErrorKind| -> ExitCode {
            resume_unwind(Box::new(OutputFailed(kind.into())))
        };
        let is = |found: ExitCode, status: u8| {
            format!("{found:?}") == format!("{:?}", ExitCode::from(status))
        };
        assert!(is(run("test", || ExitCode::from(7)), 7));
        assert!(is(
            run("test", || failing(io::ErrorKind::BrokenPipe)),
            STATUS_CLOSED
        ));
        assert!(is(run("test", || failing(io::ErrorKind::StorageFull)), 1));
    }

    #[test]
    fn values_are_dropped_when_output_fails() {
        struct Key<'a>(&'a std::cell::Cell<bool>);
        impl Drop for Key<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let wiped = std::cell::Cell::new(false);
        run("test", || {
            let _key = Key(&wiped);
            resume_unwind(Box::new(OutputFailed(io::ErrorKind::BrokenPipe.into())))
        });
        assert!(wiped.get());
    }

    #[test]
    #[should_panic = "another panic"]
    fn unrelated_panics_pass() {
        run("test", || panic!("another panic"));
    }
}
