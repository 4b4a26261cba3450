//! The user that runs the server. PostgreSQL does not run as root.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::Failure;

/// The uid and gid to switch to if this process runs as root, else `None`.
#[derive(Clone, Copy, Debug)]
pub(super) struct User(Option<(u32, u32)>);

impl User {
    /// Returns the current user.
    pub(super) const fn same() -> Self {
        Self(None)
    }

    pub(super) fn find() -> Result<Self, Failure> {
        let path = Path::new("/proc/self");
        if fs::metadata(path)
            .map_err(|source| Failure::io(path, source))?
            .uid()
            != 0
        {
            return Ok(Self(None));
        }
        let path = Path::new("/etc/passwd");
        let users = fs::read_to_string(path).map_err(|source| Failure::io(path, source))?;
        let ids = ["postgres", "nobody"]
            .iter()
            .find_map(|name| ids(&users, name));
        ids.map(|ids| Self(Some(ids))).ok_or(Failure::NoUser)
    }

    /// Makes a command that runs as this user, in a process group without the terminal's signals.
    pub(super) fn command(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some((uid, gid)) = self.0 {
            command.uid(uid).gid(gid);
        }
        command.process_group(0).current_dir("/");
        command
    }

    /// Makes this user the owner of a file or folder.
    pub(super) fn own(self, path: &Path) -> io::Result<()> {
        self.0
            .map_or(Ok(()), |(uid, gid)| chown(path, Some(uid), Some(gid)))
    }

    /// Copies a folder with its contents. Only this user can access the copy.
    pub(super) fn copy(self, from: &Path, to: &Path) -> io::Result<()> {
        fs::create_dir(to)?;
        fs::set_permissions(to, fs::Permissions::from_mode(0o700))?;
        self.own(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let target = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                self.copy(&entry.path(), &target)?;
            } else {
                fs::copy(entry.path(), &target)?;
                self.own(&target)?;
            }
        }
        Ok(())
    }
}

/// Finds a user's uid and gid in the text of `/etc/passwd`.
fn ids(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::ids;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgres2:x:7:8::/:/bin/sh\npostgres:x:101:104::/:/bin/sh\nbad:x\n";
        for (name, expected) in [
            ("postgres", Some((101, 104))),
            ("root", Some((0, 0))),
            ("post", None),
            ("bad", None),
        ] {
            assert_eq!(ids(users, name), expected, "{name}");
        }
    }
}
