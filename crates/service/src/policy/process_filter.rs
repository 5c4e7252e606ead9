//! The processes that a rule is about.

use super::identity::Identity;
use std::fmt;

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// As the rule writes it.
    pub text: String,
    /// Its number.
    pub number: u32,
}

/// Conditions on a process. All that are given must hold; without any it matches every process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFilter {
    /// Effective user.
    pub user: Option<Account>,
    /// Primary or supplementary group.
    pub group: Option<Account>,
    /// The executable's path, or the last part of it.
    pub program: Option<String>,
    /// A control group, with all groups below it.
    pub cgroup: Option<String>,
}

impl ProcessFilter {
    /// Does this process match? `unknown` is the answer where its program or control group cannot be read. A process
    /// can hide its executable from an unprivileged service, so rules that deny or limit treat an unknown process as a
    /// match.
    pub fn matches(&self, identity: &Identity, unknown: bool) -> bool {
        self.user.as_ref().is_none_or(|user| user.number == identity.uid)
            && self.group.as_ref().is_none_or(|group| identity.groups.contains(&group.number))
            && self
                .program
                .as_ref()
                .is_none_or(|program| if identity.program.is_empty() { unknown } else { is_program(program, identity) })
            && self.cgroup.as_ref().is_none_or(|cgroup| {
                if identity.cgroup.is_empty() { unknown } else { is_below(&identity.cgroup, cgroup) }
            })
    }
}

fn is_program(wanted: &str, identity: &Identity) -> bool {
    if wanted.starts_with('/') { wanted == identity.program } else { wanted == identity.name() }
}

/// Is the control group `inner` the group `outer` or below it?
fn is_below(inner: &str, outer: &str) -> bool {
    let outer = outer.trim_end_matches('/');
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl fmt::Display for ProcessFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|user| &user.text);
        let group = self.group.as_ref().map(|group| &group.text);
        let parts =
            [("user", user), ("group", group), ("program", self.program.as_ref()), ("cgroup", self.cgroup.as_ref())];
        for (keyword, value) in parts {
            if let Some(value) = value {
                write!(f, " {keyword} {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_match_by_path_or_by_name() {
        let nginx = Identity { program: "/usr/sbin/nginx".into(), ..Identity::default() };
        let matches = |program: &str| {
            ProcessFilter { program: Some(program.into()), ..ProcessFilter::default() }.matches(&nginx, false)
        };
        assert!(matches("nginx") && matches("/usr/sbin/nginx"));
        assert!(!matches("/tmp/nginx") && !matches("ngin") && !matches("sbin/nginx") && !matches("/nginx"));
    }

    #[test]
    fn control_groups_match_with_all_below_them_and_not_by_half_a_name() {
        assert!(
            is_below("/system.slice/nginx.service", "/system.slice") && is_below("/a", "/a") && is_below("/a/b", "/")
        );
        assert!(is_below("/a/b", "/a/") && !is_below("/ab", "/a") && !is_below("/a", "/a/b"));
    }

    #[test]
    fn all_conditions_must_hold() {
        let filter = ProcessFilter {
            user: Some(Account { text: "1000".into(), number: 1000 }),
            group: Some(Account { text: "5".into(), number: 5 }),
            ..ProcessFilter::default()
        };
        let of = |uid, groups: &[u32]| Identity { uid, groups: groups.into(), ..Identity::default() };
        assert!(filter.matches(&of(1000, &[3, 5]), false));
        assert!(!filter.matches(&of(1000, &[3]), true) && !filter.matches(&of(1001, &[5]), true));
        assert!(ProcessFilter::default().matches(&Identity::default(), false));
    }
}
