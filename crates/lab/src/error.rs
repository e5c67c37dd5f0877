// SPDX-License-Identifier: GPL-2.0-or-later
//! What can go wrong with packages, images and machines.

use std::io;
use std::path::{Path, PathBuf};

/// Why the lab could not do what it was asked for: what was tried, on what, and what to do next.
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
        /// What the system said. Not called `source`: a chain of errors would name it twice.
        why: io::Error,
    },
    /// A program of the machine could not be run, or failed.
    #[error("running `{command}`: {why}")]
    Command {
        /// Program and arguments.
        command: String,
        /// Exit status and the last it said, or why it did not start.
        why: String,
    },
    /// The archive could not be found or read, or lacks something.
    #[error("{0}")]
    Packages(String),
    /// A package could not be downloaded.
    #[error("{0}")]
    Download(String),
    /// Something an image is to hold is not there, or not what it should be.
    #[error("building the {image} image: {why}")]
    Image {
        /// `host` or `guest`.
        image: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A machine was asked for something it cannot be.
    #[error("{0}")]
    Unsupported(String),
    /// The clock that an experiment wants is no real machine's.
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
        /// Where they were looked for.
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
        "the lab's host did not answer `{request}` within {seconds} s; the last lines of its console:\n{console}"
    )]
    HostHung {
        /// What it was asked.
        request: String,
        /// How long it was waited for.
        seconds: u64,
        /// Last lines.
        console: String,
    },
    /// What ran in an emulated host failed, which may be the emulation's doing.
    #[error("a window was lost: {0}")]
    Doubtful(String),
    /// The agent in the host or in a guest could not do what it was asked for.
    #[error(transparent)]
    Refused(#[from] holdfast_agent::protocol::Failure),
    /// An answer of another kind than asked for.
    #[error("the agent answered `{request}` with something else: {answer}")]
    Confused {
        /// What it was asked.
        request: String,
        /// What it said.
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

/// What the lab's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
