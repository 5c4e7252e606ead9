//! The drop-in of a unit: its `ExecStart=` with `towpath run --` before the program.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// The drop-in's name. systemd reads the last one last, so that one of `systemctl edit` (`override.conf`) does not undo it.
pub const NAME: &str = "zz-towpath.conf";
/// The service that is to carry a unit's program: the machine's, or another one of these units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    unit: String,
    /// With its name no service of the program's own user is started.
    socket: String,
}

impl Default for Carrier {
    fn default() -> Self {
        Self { unit: "towpathd.service".into(), socket: "/run/towpath/towpath.sock".into() }
    }
}

impl std::str::FromStr for Carrier {
    type Err = String;
    fn from_str(instance: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        if instance.is_empty() || instance.starts_with('-') || !instance.chars().all(plain) {
            return Err(format!("{instance:?} is no name of an instance; use letters, digits, - and _"));
        }
        Ok(Self { unit: format!("towpathd@{instance}.service"), socket: format!("/run/towpath/{instance}.sock") })
    }
}

/// What [`Facts`] are made of.
pub const PROPERTIES: [&str; 12] = [
    "Id",
    "LoadState",
    "FragmentPath",
    "DropInPaths",
    "User",
    "DynamicUser",
    "PrivateNetwork",
    "NetworkNamespacePath",
    "RestrictAddressFamilies",
    "NoExecPaths",
    "RootDirectory",
    "RootImage",
];

/// What the unit says of itself, by the names of `systemctl show`.
pub struct Facts(BTreeMap<String, String>);

impl Facts {
    /// From the lines of `systemctl show`.
    pub fn of(shown: &str) -> Self {
        let pairs = shown.lines().filter_map(|line| line.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }
    /// The unit's own name, if it was named by another one.
    pub fn id(&self) -> &str {
        self.get("Id")
    }
    /// Its files in the order in which they hold.
    pub fn files(&self) -> Vec<PathBuf> {
        let names = [self.get("FragmentPath"), self.get("DropInPaths")];
        names.iter().flat_map(|names| names.split_whitespace()).map(PathBuf::from).collect()
    }
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Whether it can be put under Towpath.
    pub fn check(&self, unit: &str) -> Result<(), String> {
        if self.get("LoadState") != "loaded" {
            return Err(format!(
                "systemd does not know {unit} ({}); `systemctl list-unit-files` lists them",
                self.get("LoadState")
            ));
        }
        for root in ["RootDirectory", "RootImage"] {
            if !self.get(root).is_empty() {
                return Err(format!("{unit} has other files ({root}={}), where towpath is not", self.get(root)));
            }
        }
        let families = self.get("RestrictAddressFamilies");
        let listed = families.split_whitespace().any(|family| family.trim_start_matches('~') == "AF_UNIX");
        // Systemd shows a list of what is allowed, or after ~ of what is not.
        let forbidden = if families.starts_with('~') { listed } else { !families.is_empty() && !listed };
        if forbidden {
            return Err(format!(
                "{unit} has no UNIX sockets, by which programs reach the service; add RestrictAddressFamilies=AF_UNIX by `systemctl edit {unit}`"
            ));
        }
        Ok(())
    }

    /// What the operator should know.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let user = self.get("User");
        if self.get("DynamicUser") == "yes" {
            notes.push(
                "its user has no number that lasts: only `admit = [\"all\"]` admits it, or a User= of its own".into(),
            );
        } else if !["", "root", "0"].contains(&user) {
            notes.push(format!("it runs as {user}: the service's configuration must have `admit = [\"user:{user}\"]`"));
        }
        if self.get("PrivateNetwork") == "yes" || !self.get("NetworkNamespacePath").is_empty() {
            notes.push("it has another network namespace: the service's configuration must name that one (docs/guide/namespaces.md)".into());
        }
        notes
    }
}

/// The drop-in's text, from those of the unit's files. `executed`: what must be executable beside the program, this one first.
pub fn text(
    unit: &str,
    Carrier { unit: carrier, socket }: &Carrier,
    texts: &[String],
    facts: &Facts,
    executed: &[PathBuf],
) -> Result<String, String> {
    let starts = starts(texts);
    if starts.is_empty() {
        return Err(format!("{unit} has no ExecStart="));
    }
    let plain =
        |path: &PathBuf| path.to_str().is_some_and(|path| !path.contains([' ', '\t', '%', '"', '\'', '\\', '$', ';']));
    let Some(towpath) = executed.first().filter(|_| executed.iter().all(plain)) else {
        return Err("Towpath lies where systemd would need quotes; install it elsewhere".into());
    };
    let towpath = towpath.display();
    let mut text = format!(
        "# Written by `towpath unit enable {unit}`; `towpath unit disable {unit}` removes it.\n\
         [Unit]\nWants={carrier}\nAfter={carrier}\n\n[Service]\nExecStart=\n"
    );
    for start in starts {
        let program = start.trim_start_matches(['-', '@', ':', '+', '!', '|']);
        let prefix = &start[..start.len() - program.len()];
        if prefix.contains('@') {
            return Err(format!(
                "ExecStart={start} gives the program another name by `@`, which cannot be kept; write a drop-in without it"
            ));
        }
        if program.split_whitespace().take(2).collect::<Vec<_>>() == [&*towpath.to_string(), "run"] {
            return Err(format!("{unit} is under Towpath by its own ExecStart="));
        }
        let _ = writeln!(text, "ExecStart={prefix}{towpath} run --socket {socket} -- {program}");
    }
    if !facts.get("NoExecPaths").is_empty() {
        for path in executed {
            let _ = writeln!(text, "ExecPaths={}", path.display());
        }
    }
    Ok(text)
}

/// The values of `ExecStart=` that hold in these files.
fn starts(texts: &[String]) -> Vec<String> {
    let mut starts = Vec::new();
    for text in texts {
        let (mut service, mut lines) = (false, text.lines());
        while let Some(line) = lines.next() {
            if line.trim_start().starts_with(['#', ';']) {
                continue;
            }
            let mut line = line.to_owned();
            while goes_on(&line) {
                line.pop();
                // A comment may stand in the middle.
                let next = lines.by_ref().find(|next| !next.trim_start().starts_with(['#', ';']));
                line.push(' ');
                line.push_str(next.unwrap_or_default());
            }
            let line = line.trim();
            if line.starts_with('[') {
                service = line == "[Service]";
                continue;
            }
            match line.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
                Some(("ExecStart", "")) if service => starts.clear(),
                Some(("ExecStart", value)) if service => starts.push(value.to_owned()),
                _ => {}
            }
        }
    }
    starts
}

/// Does a line go on in the next one? Two backslashes are one that is meant.
fn goes_on(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NGINX: &str = "# /lib/a comment\n[Unit]\nDescription=x\n\n[Service]\nType=forking\n\
        ExecStartPre=/usr/sbin/nginx -t\nExecStart=-/usr/sbin/nginx -g 'daemon on; master_process on;'\n\n[Install]\nExecStart=/no\n";

    fn of(file: &str, facts: &str) -> Result<String, String> {
        text(
            "nginx.service",
            &Carrier::default(),
            &[file.to_owned()],
            &Facts::of(facts),
            &["/usr/bin/towpath".into(), "/usr/lib/towpath".into()],
        )
    }

    #[test]
    fn the_program_is_started_by_towpath_with_the_same_words() {
        assert_eq!(
            of(NGINX, "").unwrap(),
            "# Written by `towpath unit enable nginx.service`; `towpath unit disable nginx.service` removes it.\n\
             [Unit]\nWants=towpathd.service\nAfter=towpathd.service\n\n[Service]\nExecStart=\n\
             ExecStart=-/usr/bin/towpath run --socket /run/towpath/towpath.sock -- /usr/sbin/nginx -g 'daemon on; master_process on;'\n"
        );
    }

    #[test]
    fn another_service_carries_it_if_it_is_named() {
        let web = "web-1".parse().unwrap();
        let text = text("nginx.service", &web, &[NGINX.to_owned()], &Facts::of(""), &["/usr/bin/towpath".into()]);
        let text = text.unwrap();
        assert!(text.contains("\nWants=towpathd@web-1.service\nAfter=towpathd@web-1.service\n"), "{text}");
        assert!(text.contains("=-/usr/bin/towpath run --socket /run/towpath/web-1.sock -- /usr/sbin/nginx"), "{text}");
        for wrong in ["", "a b", "../x", "a.b", "-a", "%i", "a@b"] {
            assert!(wrong.parse::<Carrier>().unwrap_err().contains("is no name of an instance"), "{wrong}");
        }
    }

    #[test]
    fn what_holds_in_all_files_is_taken() {
        let file = "[Service]\n# /proc/<pid>/exe, says a comment\nExecStart = /opt/nginx \\\n# why\n  -c /etc/n\nExecStart=/b \\\\\nType=oneshot\n";
        let other = "[Service]\nExecStart=\n".to_owned() + &file[10..];
        assert_eq!(starts(&[NGINX.to_owned(), other]), ["/opt/nginx    -c /etc/n", "/b \\\\"]);
        assert_eq!(starts(&[NGINX.to_owned(), "[Service]\nExecStart=/more\n".to_owned()]).len(), 2);
        let facts =
            Facts::of("Id=redis-server.service\nFragmentPath=/lib/r.service\nDropInPaths=/etc/a.conf /etc/b.conf\n");
        assert_eq!(facts.id(), "redis-server.service");
        assert_eq!(facts.files(), ["/lib/r.service", "/etc/a.conf", "/etc/b.conf"].map(PathBuf::from));
    }

    #[test]
    fn a_unit_that_may_execute_little_may_execute_towpath() {
        let text = of(NGINX, "NoExecPaths=/\n").unwrap();
        assert!(text.ends_with("\nExecPaths=/usr/bin/towpath\nExecPaths=/usr/lib/towpath\n"), "{text}");
        let odd = super::text(
            "x.service",
            &Carrier::default(),
            &[NGINX.to_owned()],
            &Facts::of(""),
            &["/a b/towpath".into()],
        );
        assert!(odd.unwrap_err().contains("install it elsewhere"));
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        assert!(of("[Service]\nType=oneshot\n", "").unwrap_err().contains("has no ExecStart="));
        assert!(of("[Service]\nExecStart=@/bin/sh sh\n", "").unwrap_err().contains("another name by `@`"));
        let own = of("[Service]\nExecStart=/usr/bin/towpath run -- /bin/x\n", "");
        assert!(own.unwrap_err().contains("by its own ExecStart="));
    }

    #[test]
    fn a_unit_is_judged_by_what_systemd_says_of_it() {
        let check = |text: &str| Facts::of(text).check("x.service");
        assert!(check("LoadState=not-found\n").unwrap_err().contains("does not know x.service (not-found)"));
        assert!(check("LoadState=loaded\nRootDirectory=/srv\n").unwrap_err().contains("where towpath is not"));
        assert_eq!(check("LoadState=loaded\nRestrictAddressFamilies=AF_INET AF_UNIX\n"), Ok(()));
        assert_eq!(check("LoadState=loaded\nRestrictAddressFamilies=~AF_PACKET\n"), Ok(()));
        for families in ["AF_INET AF_INET6", "~AF_UNIX AF_PACKET"] {
            let error = check(&format!("LoadState=loaded\nRestrictAddressFamilies={families}\n")).unwrap_err();
            assert!(error.contains("has no UNIX sockets"), "{error}");
        }
        let notes = |text: &str| Facts::of(text).notes();
        assert!(notes("User=root\nPrivateNetwork=no\n").is_empty());
        assert!(notes("User=redis\n")[0].contains("admit = [\"user:redis\"]"));
        assert!(notes("DynamicUser=yes\nUser=\n")[0].contains("no number that lasts"));
        assert!(notes("PrivateNetwork=yes\n")[0].contains("another network namespace"));
    }

    #[test]
    fn fuzz_units() {
        const LINES: [&str; 9] = [
            "[Service]",
            "ExecStart=/bin/x",
            "ExecStart=",
            "\\",
            "# /a/50-towpath.conf",
            "# c",
            "ExecStart=-/b \\",
            "=",
            "[",
        ];
        bolero::check!().with_type::<(Vec<u8>, String)>().with_iterations(5_000).for_each(|(lines, noise)| {
            let lines = lines.iter().take(64).map(|line| LINES[usize::from(*line) % LINES.len()]);
            let texts = lines.chain([noise.as_str()]).collect::<Vec<_>>().join("\n");
            assert!(starts(&[texts]).iter().all(|start| !start.is_empty() && !start.contains('\n')));
        });
    }
}
