//! Which file systems keep their locks and links to this machine's kernel. Those that do not are known
//! by name; what is not known is let in, and `prepare` still tests locks and links on it.

use std::path::Path;

/// `Err`: the name of a file system that other machines may write in.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn check(root: &Path) -> Result<(), &'static str> {
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
    let Ok(stat) = rustix::fs::statfs(root) else {
        return Ok(());
    };
    // The kernel's word is signed or not, 32 or 64 bits wide, by architecture; the number has 32 bits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let kind = stat.f_type as u32;
    match SHARED.iter().find(|(number, _)| *number == kind) {
        Some((_, name)) => Err(name),
        None => Ok(()),
    }
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
