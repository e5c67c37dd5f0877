// SPDX-License-Identifier: GPL-2.0-or-later
//! The `newc` format of initramfs archives (the kernel's
//! `Documentation/driver-api/early-userspace/buffer-format.rst`), the same bytes for the same
//! input.

use std::io::{self, Write};

/// The type of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node<'a> {
    Directory,
    File { mode: u32, data: &'a [u8] },
    Symlink { target: &'a str },
    CharDevice { mode: u32, major: u32, minor: u32 },
}

/// Writes an archive; entries come in the order they are given, parents before children.
pub(super) struct Writer<W> {
    out: W,
    inode: u32,
    written: u64,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(out: W) -> Self {
        Writer { out, inode: 0, written: 0 }
    }

    /// `path` is relative to the root.
    pub(super) fn add(&mut self, path: &str, node: &Node<'_>) -> io::Result<()> {
        // Numbered in order: real inode numbers would differ from run to run.
        self.inode += 1;
        let inode = self.inode;
        match *node {
            Node::Directory => self.entry(inode, path, 0o040_755, 2, (0, 0), &[]),
            Node::File { mode, data } => self.entry(inode, path, 0o100_000 | mode, 1, (0, 0), data),
            Node::Symlink { target } => {
                self.entry(inode, path, 0o120_777, 1, (0, 0), target.as_bytes())
            }
            Node::CharDevice { mode, major, minor } => {
                self.entry(inode, path, 0o020_000 | mode, 1, (major, minor), &[])
            }
        }
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        self.entry(0, "TRAILER!!!", 0, 1, (0, 0), &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        inode: u32,
        path: &str,
        mode: u32,
        links: u32,
        (major, minor): (u32, u32),
        data: &[u8],
    ) -> io::Result<()> {
        let bytes = u32::try_from(data.len())
            .map_err(|_| io::Error::other(format!("{path}: a file of 4 GB does not fit")))?;
        let name_bytes = path.len() as u32 + 1;
        let (owner, group, time, device) = (0, 0, 0, 0);
        let mut head = String::from("070701");
        for word in [
            inode, mode, owner, group, links, time, bytes, device, device, major, minor,
            name_bytes, 0,
        ] {
            head.push_str(&format!("{word:08X}"));
        }
        self.put(head.as_bytes())?;
        self.put(path.as_bytes())?;
        self.put(&[0])?;
        self.pad()?;
        self.put(data)?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let missing = self.written.next_multiple_of(4) - self.written;
        self.put(&[0; 3][..missing as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_the_bytes_of_the_format() {
        let mut writer = Writer::new(Vec::new());
        writer.add("d", &Node::Directory).unwrap();
        writer.add("d/f", &Node::File { mode: 0o755, data: b"hello" }).unwrap();
        let archive = writer.finish().unwrap();
        // Magic; inode, mode, uid, gid, links, mtime, size, device (2), special device (2), length
        // of the name with its end, checksum; name and contents, each padded to 4 bytes.
        let expected = [
            "070701 00000001 000041ED 00000000 00000000 00000002 00000000 00000000 \
             00000000 00000000 00000000 00000000 00000002 00000000 d\0",
            "070701 00000002 000081ED 00000000 00000000 00000001 00000000 00000005 \
             00000000 00000000 00000000 00000000 00000004 00000000 d/f\0\0\0 hello\0\0\0",
            "070701 00000000 00000000 00000000 00000000 00000001 00000000 00000000 \
             00000000 00000000 00000000 00000000 0000000B 00000000 TRAILER!!!\0\0\0\0",
        ];
        let expected = expected.concat().replace(' ', "");
        assert_eq!(String::from_utf8(archive).unwrap(), expected);
    }
}
