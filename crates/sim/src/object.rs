// SPDX-License-Identifier: GPL-2.0-or-later
//! The scheduler, compiled and loaded: one copy of its code and variables for each machine.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{fs, process};

use object::{Object as _, ObjectSymbol, ObjectSymbolTable};

use crate::compile::Build;
use crate::kfuncs;

/// Which source of the scheduler a machine runs.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// This tree's, as compiled with this crate.
    #[default]
    Tree,
    /// Another one, made by [`Source::compile`] or [`Source::patched`].
    Other(Arc<Compiled>),
}

/// A compiled scheduler: a shared object and the addresses in it.
#[derive(Debug)]
pub struct Compiled {
    bytes: Vec<u8>,
    symbols: BTreeMap<String, u64>,
}

impl Compiled {
    fn new(bytes: Vec<u8>) -> Result<Self, String> {
        let parsed = object::File::parse(&*bytes).map_err(|e| format!("the scheduler: {e}"))?;
        let table = parsed.symbol_table().ok_or("the scheduler has no symbols")?;
        let symbols = table
            .symbols()
            .filter(|symbol| !symbol.is_undefined())
            .filter_map(|symbol| Some((symbol.name().ok()?.to_string(), symbol.address())))
            .collect();
        Ok(Self { bytes, symbols })
    }
}

/// Of this tree.
const TREE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scheduler.so"));

impl Source {
    /// Compiles the scheduler of another tree: `crates` is its directory of that name. Needs clang.
    pub fn compile(crates: &Path) -> Result<Self, String> {
        let out = tempfile::tempdir().map_err(|e| format!("cannot make a directory: {e}"))?;
        let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("shim");
        let headers = Path::new(env!("OUT_DIR"));
        let object = Build { shim: &shim, headers, crates, out: out.path() }.run()?;
        let bytes = fs::read(&object).map_err(|e| format!("{}: {e}", object.display()))?;
        Ok(Self::Other(Arc::new(Compiled::new(bytes)?)))
    }

    /// Compiles this tree's scheduler with a change: in `file` (below `scheduler/src/bpf` or
    /// `policy/include/holdfast`) `old`, which must be there once, becomes `new`.
    pub fn patched(file: &str, old: &str, new: &str) -> Result<Self, String> {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let copy = tempfile::tempdir().map_err(|e| format!("cannot make a directory: {e}"))?;
        for dir in ["scheduler/src/bpf", "bpf/include", "policy/include"] {
            copy_dir(&tree.join(dir), &copy.path().join(dir))?;
        }
        let places = ["scheduler/src/bpf", "policy/include/holdfast"];
        let path = places.iter().map(|dir| copy.path().join(dir).join(file));
        let path = path.into_iter().find(|path| path.exists());
        let path = path.ok_or_else(|| format!("there is no {file}"))?;
        let text = fs::read_to_string(&path).map_err(|e| format!("{file}: {e}"))?;
        if text.matches(old).count() != 1 {
            return Err(format!("{file} has this text {} times: {old}", text.matches(old).count()));
        }
        fs::write(&path, text.replace(old, new)).map_err(|e| format!("{file}: {e}"))?;
        Self::compile(copy.path())
    }

    fn compiled(&self) -> Result<Arc<Compiled>, String> {
        static OF_TREE: OnceLock<Result<Arc<Compiled>, String>> = OnceLock::new();
        match self {
            Self::Tree => {
                OF_TREE.get_or_init(|| Compiled::new(TREE.to_vec()).map(Arc::new)).clone()
            }
            Self::Other(compiled) => Ok(Arc::clone(compiled)),
        }
    }
}

fn copy_dir(from: &Path, to: &Path) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", from.display());
    fs::create_dir_all(to).map_err(fail)?;
    for entry in fs::read_dir(from).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let (from, to): (PathBuf, PathBuf) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_dir(&from, &to)?;
        } else {
            fs::copy(&from, &to).map_err(fail)?;
        }
    }
    Ok(())
}

/// A loaded copy of the scheduler.
pub(crate) struct Object {
    handle: *mut c_void,
    base: u64,
    compiled: Arc<Compiled>,
    // Its path names the object: another one that took the number would not be loaded anew.
    _file: File,
}

impl Object {
    pub(crate) fn load(source: &Source) -> Result<Self, String> {
        let compiled = source.compiled()?;

        // SAFETY: a name without a zero inside; nothing else is passed.
        let fd = unsafe { libc::memfd_create(c"scheduler".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(format!("cannot make a file: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just made it for this process.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(&compiled.bytes).and_then(|()| file.rewind()).map_err(|e| e.to_string())?;
        let path = format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd());
        let path = CString::new(path).expect("no zero in it");
        // SAFETY: its constructors are those of the compiler, which do nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlopen() has failed, and says why.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(format!("the scheduler cannot be loaded: {}", why.to_string_lossy()));
        }
        // SAFETY: a valid handle and name.
        let calls = unsafe { libc::dlsym(handle, c"hf_calls".as_ptr()) } as u64;
        let in_file =
            compiled.symbols.get("hf_calls").ok_or("the scheduler has no table of calls")?;
        let object = Self { handle, base: calls - in_file, compiled, _file: file };
        object.make_writable();
        object.fill_calls();
        Ok(object)
    }

    /// The address of a variable or function, static ones as well.
    pub(crate) fn symbol(&self, name: &str) -> Option<u64> {
        self.compiled.symbols.get(name).map(|address| self.base + address)
    }

    /// Writes a variable, or an element of an array.
    pub(crate) fn set<T: Copy>(&self, name: &str, index: usize, value: T) {
        let address = self.symbol(name).unwrap_or_else(|| panic!("the scheduler has no {name}"));
        // SAFETY: the callers know the type; make_writable() has made constants writable.
        unsafe { (address as *mut T).add(index).write_volatile(value) }
    }

    /// Reads a variable of type `T`.
    pub(crate) fn get<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the callers know the type.
        self.symbol(name).map(|address| unsafe { (address as *const T).read_volatile() })
    }

    /// Knobs are constants, which libbpf writes before it loads a program.
    fn make_writable(&self) {
        unsafe extern "C" fn visit(
            info: *mut libc::dl_phdr_info,
            _: usize,
            data: *mut c_void,
        ) -> c_int {
            // SAFETY: the loader passes valid pointers; `data` is the base below.
            let (info, base) = unsafe { (&*info, *data.cast::<u64>()) };
            if info.dlpi_addr != base {
                return 0;
            }
            // SAFETY: an array of this length.
            let headers =
                unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
            for header in headers {
                if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_X != 0 {
                    continue;
                }
                let start = (base + header.p_vaddr) & !0xfff;
                let end = (base + header.p_vaddr + header.p_memsz + 0xfff) & !0xfff;
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: whole pages of the object's data.
                unsafe { libc::mprotect(start as *mut c_void, (end - start) as usize, protection) };
            }
            1
        }
        let mut base = self.base;
        // SAFETY: visit() keeps nothing.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut base).cast()) };
    }

    /// Connects each call of a helper or kfunc to the model.
    fn fill_calls(&self) {
        let (Some(mut name), Some(calls)) = (self.symbol("hf_call_names"), self.symbol("hf_calls"))
        else {
            return;
        };
        for index in 0.. {
            // SAFETY: the table of compile.rs: strings that end with a zero, and an empty one.
            let text = unsafe { CStr::from_ptr(name as *const _) };
            if text.is_empty() {
                break;
            }
            name += text.count_bytes() as u64 + 1;
            let function = kfuncs::find(text.to_str().unwrap_or_default());
            // SAFETY: `hf_calls` has as many entries as there are names.
            unsafe { (calls as *mut usize).add(index).write(function) };
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: loaded by load(); no thread runs its code.
        unsafe { libc::dlclose(self.handle) };
    }
}
