// SPDX-License-Identifier: GPL-2.0-or-later
//! Errors of packages, images and machines.

use std::io;
use std::path::{Path, PathBuf};

/// Why the lab failed. Every message says what was tried, on what, and what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory.
    #[error("{what} {}: {why}", .path.display())]
    Io {
        /// What was tried, e.g. `reading`.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error. Not called `source`, so that a chain of errors does not repeat it.
        why: io::Error,
    },
    /// A program of the machine could not be run, or failed.
    #[error("running `{command}`: {why}")]
    Command {
        /// Program and arguments.
        command: String,
        /// Exit status and last output, or why it did not start.
        why: String,
    },
    /// The archive could not be found or read, or lacks something.
    #[error("{0}")]
    Packages(String),
    /// A package could not be downloaded.
    #[error("{0}")]
    Download(String),
    /// A file for an image is missing, or not as it should be.
    #[error("building the {image} image: {why}")]
    Image {
        /// `host` or `guest`.
        image: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A machine cannot be as requested.
    #[error("{0}")]
    Unsupported(String),
    /// Only an emulated host has the clock that an experiment asks for.
    #[error(
        "only an emulated host has a clock that counts instructions: leave out `clock` in the \
         experiment, or take `--accel tcg`"
    )]
    Counting,
    /// Programs of the lab are not installed.
    #[error(
        "{} lacks {}, which the lab needs: build and install all of Holdfast (`make build`, \
         `make install`), or name the directory that has them with --dist",
        .dist.display(),
        .programs.join(", ")
    )]
    Missing {
        /// Directory without them.
        dist: PathBuf,
        /// Their paths there.
        programs: Vec<String>,
    },
    /// The lab's host ended, e.g. by a panic of its kernel.
    #[error("the lab's host ended ({how}); the last lines of its console:\n{console}")]
    HostEnded {
        /// How its QEMU ended.
        how: String,
        /// Last lines.
        console: String,
    },
    /// The lab's host did not answer in time.
    #[error(
        "the lab's host did not answer `{request}` within {seconds} s; the last lines of its \
         console:\n{console}"
    )]
    HostHung {
        /// The request.
        request: String,
        /// Seconds it was given.
        seconds: u64,
        /// Last lines.
        console: String,
    },
    /// A process in an emulated host failed, perhaps because of the emulation.
    #[error("a window was lost: {0}")]
    Doubtful(String),
    /// The agent in the host or in a guest could not serve a request.
    #[error(transparent)]
    Refused(#[from] holdfast_agent::protocol::Failure),
    /// An answer of the wrong kind.
    #[error("the agent answered `{request}` with something else: {answer}")]
    Confused {
        /// The request.
        request: String,
        /// The answer.
        answer: String,
    },
    /// Ctrl-C, or a request to end.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn io<'a>(
        what: &'static str,
        path: impl AsRef<Path> + 'a,
    ) -> impl FnOnce(io::Error) -> Error + 'a {
        move |why| Error::Io { what, path: path.as_ref().to_owned(), why }
    }
}

/// Result of the lab's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
