// SPDX-License-Identifier: GPL-2.0-or-later
//! Tells systemd that the scheduler is loaded (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the service manager that started this program, if one did, that it is ready.
pub(crate) fn notify() {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, b"READY=1")
    {
        log::warn!("cannot tell {} that the scheduler is loaded: {error}", socket.display());
    }
}

fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        // An abstract name.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_sockets_with_and_without_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("holdfast-test-{}", std::process::id());
        let abstract_name = format!("@{name}");
        for (address, socket) in [
            (SocketAddr::from_pathname(&path).unwrap(), path.as_os_str()),
            (SocketAddr::from_abstract_name(&name).unwrap(), OsStr::new(&abstract_name)),
        ] {
            let manager = UnixDatagram::bind_addr(&address).unwrap();
            send(socket, b"READY=1").unwrap();
            let mut heard = [0; 16];
            let len = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..len], b"READY=1");
        }
    }
}
