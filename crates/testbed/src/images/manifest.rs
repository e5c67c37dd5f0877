// SPDX-License-Identifier: GPL-2.0-or-later
//! Content of an image, declared before it is built: the same declaration makes the same image.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::cpio::{Node, Writer};
use crate::error::{Error, Result};

/// Raised if the same manifest has to make another image.
const FORMAT: u32 = 1;

#[derive(Clone, Debug)]
enum Entry {
    Directory,
    File { mode: u32, content: Content },
    Symlink { target: String },
    CharDevice { mode: u32, major: u32, minor: u32 },
}

#[derive(Clone, Debug)]
enum Content {
    Bytes(Vec<u8>),
    /// A file of the cache: its path stands for its content.
    Cached(PathBuf),
    /// A file that may change.
    Local(PathBuf),
}

/// Paths and their types; parents are added.
#[derive(Clone, Debug)]
pub struct Manifest {
    name: String,
    entries: BTreeMap<String, Entry>,
}

impl Manifest {
    /// An empty image; `name` is for messages.
    pub fn new(name: &str) -> Self {
        Manifest { name: name.to_owned(), entries: BTreeMap::new() }
    }

    fn put(&mut self, path: &str, entry: Entry) {
        let path = path.trim_matches('/');
        for (i, _) in path.match_indices('/') {
            self.entries.entry(path[..i].to_owned()).or_insert(Entry::Directory);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// An empty directory.
    pub fn directory(&mut self, path: &str) {
        self.put(path, Entry::Directory);
    }

    /// A symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.put(path, Entry::Symlink { target: target.to_owned() });
    }

    /// A file of these bytes.
    pub fn bytes(&mut self, path: &str, mode: u32, data: impl Into<Vec<u8>>) {
        self.put(path, Entry::File { mode, content: Content::Bytes(data.into()) });
    }

    /// A character device.
    pub fn char_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) {
        self.put(path, Entry::CharDevice { mode, major, minor });
    }

    /// A file of an unpacked package: unchangeable, so its path in the cache stands for its bytes.
    pub fn cached(&mut self, path: &str, source: &Path) -> Result<()> {
        let mode = self.mode(source)?;
        self.put(path, Entry::File { mode, content: Content::Cached(source.to_owned()) });
        Ok(())
    }

    /// A file of the machine.
    pub fn local(&mut self, path: &str, source: &Path) -> Result<()> {
        let mode = self.mode(source)?;
        self.put(path, Entry::File { mode, content: Content::Local(source.to_owned()) });
        Ok(())
    }

    /// A directory of an unpacked package with all its files; links stay links.
    pub fn cached_tree(&mut self, path: &str, source: &Path) -> Result<()> {
        self.directory(path);
        for entry in fs::read_dir(source).map_err(Error::io("listing", source))? {
            let entry = entry.map_err(Error::io("listing", source))?;
            let from = entry.path();
            let to = format!("{path}/{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().map_err(Error::io("reading", &from))?;
            if kind.is_dir() {
                self.cached_tree(&to, &from)?;
            } else if kind.is_symlink() {
                let target = fs::read_link(&from).map_err(Error::io("reading", &from))?;
                self.symlink(&to, &target.to_string_lossy());
            } else {
                self.cached(&to, &from)?;
            }
        }
        Ok(())
    }

    /// Whether the image has this path already.
    pub fn contains(&self, path: &str) -> bool {
        self.entries.contains_key(path.trim_matches('/'))
    }

    fn mode(&self, source: &Path) -> Result<u32> {
        let metadata = fs::metadata(source).map_err(Error::io("reading", source))?;
        if !metadata.is_file() {
            let why = format!("{} is not a file", source.display());
            return Err(Error::Image { image: self.name.clone(), why });
        }
        // The builder's umask must not change the image.
        Ok(if metadata.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 })
    }

    /// Same hash, same image.
    fn hash(&self) -> Result<String> {
        let mut sum = Sha256::new();
        let mut add = |bytes: &[u8]| {
            sum.update((bytes.len() as u64).to_le_bytes());
            sum.update(bytes);
        };
        add(&FORMAT.to_le_bytes());
        for (path, entry) in &self.entries {
            add(path.as_bytes());
            match entry {
                Entry::Directory => add(b"directory"),
                Entry::Symlink { target } => add(format!("symlink {target}").as_bytes()),
                Entry::CharDevice { mode, major, minor } => {
                    add(format!("device {mode:o} {major} {minor}").as_bytes());
                }
                Entry::File { mode, content } => {
                    add(format!("file {mode:o}").as_bytes());
                    match content {
                        Content::Bytes(data) => add(data),
                        Content::Cached(path) => add(path.as_os_str().as_encoded_bytes()),
                        Content::Local(path) => {
                            add(&fs::read(path).map_err(Error::io("reading", path))?);
                        }
                    }
                }
            }
        }
        Ok(hex(&sum.finalize()))
    }

    /// Builds the image, or finds it built, below `directory`.
    pub fn build(&self, directory: &Path) -> Result<PathBuf> {
        let name = format!("{}-{}.cpio", self.name, &self.hash()?[..20]);
        made_once(directory, &name, |file| self.write(BufWriter::with_capacity(1 << 20, file)))
    }

    /// Writes the archive.
    pub fn write(&self, out: impl Write) -> Result<()> {
        let mut writer = Writer::new(out);
        for (path, entry) in &self.entries {
            let data;
            let node = match entry {
                Entry::Directory => Node::Directory,
                Entry::Symlink { target } => Node::Symlink { target },
                Entry::CharDevice { mode, major, minor } => {
                    Node::CharDevice { mode: *mode, major: *major, minor: *minor }
                }
                Entry::File { mode, content: Content::Bytes(data) } => {
                    Node::File { mode: *mode, data }
                }
                Entry::File { mode, content: Content::Cached(source) | Content::Local(source) } => {
                    data = fs::read(source).map_err(Error::io("reading", source))?;
                    Node::File { mode: *mode, data: &data }
                }
            };
            writer.add(path, &node).map_err(Error::io("writing to the image", path))?;
        }
        writer.finish().map_err(Error::io("writing the image", &self.name))?;
        Ok(())
    }
}

/// A file named after its content: found below `directory`, or made there by `write`.
pub(crate) fn made_once(
    directory: &Path,
    name: &str,
    write: impl FnOnce(&File) -> Result<()>,
) -> Result<PathBuf> {
    fs::create_dir_all(directory).map_err(Error::io("creating", directory))?;
    let path = directory.join(name);
    if path.exists() {
        // Marked as used, so that clearing out old files spares it.
        let _ = File::open(&path).and_then(|f| f.set_modified(std::time::SystemTime::now()));
        return Ok(path);
    }
    let partial = tempfile::NamedTempFile::new_in(directory)
        .map_err(Error::io("creating a file in", directory))?;
    write(partial.as_file())?;
    partial.persist(&path).map_err(|e| Error::io("creating", &path)(e.error))?;
    Ok(path)
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(order: &[usize]) -> Manifest {
        let mut manifest = Manifest::new("test");
        for i in order {
            match i {
                0 => manifest.bytes("/usr/bin/tool", 0o755, *b"#!"),
                1 => manifest.symlink("/bin", "usr/bin"),
                _ => manifest.char_device("/dev/console", 0o600, 5, 1),
            }
        }
        manifest
    }

    #[test]
    fn the_same_declaration_is_the_same_image() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = manifest(&[0, 1, 2]).build(a.path()).unwrap();
        let second = manifest(&[2, 1, 0]).build(b.path()).unwrap();
        assert_eq!(first.file_name(), second.file_name());
        assert_eq!(fs::read(first).unwrap(), fs::read(second).unwrap());
    }

    #[test]
    fn a_changed_file_is_another_image() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tool");
        let mut hashes = Vec::new();
        for content in ["one", "two"] {
            fs::write(&file, content).unwrap();
            let mut manifest = Manifest::new("test");
            manifest.local("/tool", &file).unwrap();
            hashes.push(manifest.hash().unwrap());
        }
        assert_ne!(hashes[0], hashes[1]);
    }

    #[test]
    fn a_directory_is_no_file() {
        let error = Manifest::new("test").local("/x", Path::new("/usr")).unwrap_err();
        assert!(error.to_string().contains("/usr is not a file"), "{error}");
    }
}
