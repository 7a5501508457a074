//! Users of this node, from `/etc/passwd` and `/etc/group`: containers of the process runtime have its files.

use std::collections::BTreeSet;

use crate::sys::Root;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// What the files say of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// `None`: it has no absolute path.
    pub home: Option<String>,
    /// The primary group.
    pub gid: u32,
    /// Groups that list the user as a member.
    pub groups: BTreeSet<u32>,
}

/// `None`: the user is not listed, or `/etc/passwd` cannot be read.
pub fn user(uid: u32) -> Option<User> {
    user_in(&Root::host(), uid)
}

fn user_in(root: &Root, uid: u32) -> Option<User> {
    let users = root.read_text(PASSWD).ok()?;
    let entry = users
        .lines()
        .find_map(|line| Entry::parse(line).filter(|it| it.uid == uid))?;
    let groups = root.read_text(GROUP).unwrap_or_default();
    let groups = groups.lines().filter_map(|line| group_of(line, entry.name));
    Some(User {
        home: entry.home.starts_with('/').then(|| entry.home.to_owned()),
        gid: entry.gid,
        groups: groups.collect(),
    })
}

/// passwd(5): `name:password:UID:GID:GECOS:directory:shell`.
struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(':');
        Some(Self {
            name: fields.next()?,
            uid: fields.nth(1)?.parse().ok()?,
            gid: fields.next()?.parse().ok()?,
            home: fields.nth(1)?,
        })
    }
}

/// group(5): `name:password:GID:user,user`. `None`: `user` is not among them.
fn group_of(line: &str, user: &str) -> Option<u32> {
    let mut fields = line.split(':').skip(2);
    let gid = fields.next()?.parse().ok()?;
    let mut members = fields.next()?.split(',');
    members.any(|it| it == user).then_some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn the_first_line_of_a_user_counts_and_every_group_that_lists_it() {
        let node = Scratch::new("users");
        let root = Root::at(node.directory());
        assert_eq!(user_in(&root, 0), None);
        root.create_dir_all("/etc").expect("a new directory");
        node.write(
            "etc/passwd",
            "# comment\nroot:x:0:0:root:/root:/bin/bash\nbad:x:one\napp:x:1000:1001:A,,,:/srv/app:/bin/sh\n\
             again:x:1000:7::/srv/again:\nnobody:x:65534:65534:nobody::\n",
        );
        let user = |uid| {
            let user = user_in(&root, uid)?;
            let groups: Vec<u32> = user.groups.into_iter().collect();
            Some((user.home, user.gid, groups))
        };
        let home = |path: &str| Some(path.to_owned());
        assert_eq!(user(1000), Some((home("/srv/app"), 1001, vec![])));
        node.write(
            "etc/group",
            "root:x:0:\nrender:x:105:again,app\nbad:x:one:app\napps:x:1001:\nvideo:x:44:app\nshort:x:9\n",
        );
        assert_eq!(user(0), Some((home("/root"), 0, vec![])));
        assert_eq!(user(1000), Some((home("/srv/app"), 1001, vec![44, 105])));
        assert_eq!(user(65534), Some((None, 65534, vec![])));
        assert_eq!(user(7), None);
    }
}
