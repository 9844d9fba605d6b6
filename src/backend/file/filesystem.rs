//! Which file systems keep their locks and links to this machine's kernel. Those that do not are known
//! by name; what is not known is let in, and `prepare` still tests locks and links on it.

use std::path::Path;

/// `Err`: the name of a file system that other machines may write in.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn check(root: &Path) -> Result<(), &'static str> {
    let Ok(stat) = rustix::fs::statfs(root) else {
        return Ok(());
    };
    // The kernel's word is signed or not, 32 or 64 bits wide, by architecture; the number has 32 bits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let kind = stat.f_type as u32;
    match shared(kind) {
        Some(name) => Err(name),
        None => Ok(()),
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared(kind: u32) -> Option<&'static str> {
    // From statfs(2) and linux/magic.h.
    const SHARED: &[(u32, &str)] = &[
        (0x0000_6969, "NFS"),
        (0x0000_517b, "SMB"),
        (0xfe53_4d42, "SMB2"),
        (0xff53_4d42, "CIFS"),
        (0x0102_1997, "9p"),
        (0x6573_5546, "FUSE"),
        (0x5346_414f, "AFS"),
        (0x6b41_4653, "kAFS"),
        (0x7375_7245, "Coda"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x1983_0326, "BeeGFS"),
        (0x2003_0528, "OrangeFS"),
        (0xaad7_aaea, "PanFS"),
        (0x0000_564c, "NCP"),
        (0x786f_4256, "VirtualBox shared folder"),
        (0xbacb_acbc, "VMware shared folder"),
    ];
    let known = SHARED.iter().find(|(number, _)| *number == kind);
    known.map(|(_, name)| *name)
}

#[cfg(target_os = "macos")]
pub(super) fn check(root: &Path) -> Result<(), &'static str> {
    const SHARED: &[&str] = &[
        "nfs", "smbfs", "afpfs", "webdav", "ftp", "macfuse", "osxfuse", "fusefs", "virtiofs",
    ];
    let Ok(stat) = rustix::fs::statfs(root) else {
        return Ok(());
    };
    let name: Vec<u8> = stat
        .f_fstypename
        .iter()
        .map(|letter| letter.cast_unsigned())
        .take_while(|letter| *letter != 0)
        .collect();
    match SHARED.iter().find(|shared| shared.as_bytes() == name) {
        Some(name) => Err(name),
        None => Ok(()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
pub(super) fn check(_root: &Path) -> Result<(), &'static str> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_several_machines_are_known_and_local_ones_are_not_among_them() {
        assert_eq!(shared(0x6969), Some("NFS"));
        assert_eq!(shared(0x6573_5546), Some("FUSE"));
        // ext4, tmpfs, overlayfs, btrfs, xfs, ZFS
        for local in [
            0xef53,
            0x0102_1994,
            0x794c_7630,
            0x9123_683e,
            0x5846_5342,
            0x2fc1_2fc1,
        ] {
            assert_eq!(shared(local), None, "{local:x}");
        }
        assert_eq!(check(Path::new("/dev/shm")), Ok(()));
    }
}
