//! The drop-in of a unit: its `ExecStart=` with `towpath run --` before the program.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// The drop-in's name. Those of the operator with a higher number are asked after it.
pub const NAME: &str = "50-towpath.conf";

/// What [`Facts`] are made of.
pub const PROPERTIES: [&str; 7] = [
    "LoadState",
    "User",
    "PrivateNetwork",
    "NetworkNamespacePath",
    "RestrictAddressFamilies",
    "NoExecPaths",
    "DynamicUser",
];

/// What the unit says of itself, by the names of `systemctl show`.
pub struct Facts(BTreeMap<String, String>);

impl Facts {
    /// From the lines of `systemctl show`.
    pub fn of(shown: &str) -> Self {
        let pairs = shown.lines().filter_map(|line| line.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
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

/// The drop-in's text, from those of `systemctl cat`. `executed`: what must be executable beside the program, this one first.
pub fn text(unit: &str, texts: &str, facts: &Facts, executed: &[PathBuf]) -> Result<String, String> {
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
         [Unit]\nWants=towpathd.service\nAfter=towpathd.service\n\n[Service]\nExecStart=\n"
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
        let _ = writeln!(text, "ExecStart={prefix}{towpath} run -- {program}");
    }
    if !facts.get("NoExecPaths").is_empty() {
        for path in executed {
            let _ = writeln!(text, "ExecPaths={}", path.display());
        }
    }
    Ok(text)
}

/// The values of `ExecStart=` that hold, without those of our own drop-in.
fn starts(texts: &str) -> Vec<String> {
    let (mut ours, mut service, mut starts) = (false, false, Vec::new());
    let mut lines = texts.lines();
    while let Some(line) = lines.next() {
        let mut line = line.trim().to_owned();
        // `systemctl cat` names each file before its text.
        if let Some(path) = line.strip_prefix("# /") {
            (ours, service) = (path.ends_with(NAME), false);
        }
        if line.starts_with(['#', ';']) {
            continue;
        }
        while line.ends_with('\\') {
            line.pop();
            // A comment may stand in the middle.
            let next = lines.by_ref().map(str::trim).find(|next| !next.starts_with(['#', ';']));
            line.push(' ');
            line.push_str(next.unwrap_or_default());
        }
        if line.starts_with('[') {
            service = line == "[Service]";
            continue;
        }
        let Some(("ExecStart", value)) = line.split_once('=').map(|(name, value)| (name.trim(), value.trim())) else {
            continue;
        };
        match (ours || !service, value) {
            (true, _) => {}
            (false, "") => starts.clear(),
            (false, value) => starts.push(value.to_owned()),
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NGINX: &str = "# /lib/systemd/system/nginx.service\n[Unit]\nDescription=x\n\n[Service]\nType=forking\n\
        ExecStartPre=/usr/sbin/nginx -t\nExecStart=-/usr/sbin/nginx -g 'daemon on; master_process on;'\n\n[Install]\nExecStart=/no\n";

    fn of(texts: &str, facts: &str) -> Result<String, String> {
        text("nginx.service", texts, &Facts::of(facts), &["/usr/bin/towpath".into(), "/usr/lib/towpath".into()])
    }

    #[test]
    fn the_program_is_started_by_towpath_with_the_same_words() {
        assert_eq!(
            of(NGINX, "").unwrap(),
            "# Written by `towpath unit enable nginx.service`; `towpath unit disable nginx.service` removes it.\n\
             [Unit]\nWants=towpathd.service\nAfter=towpathd.service\n\n[Service]\nExecStart=\n\
             ExecStart=-/usr/bin/towpath run -- /usr/sbin/nginx -g 'daemon on; master_process on;'\n"
        );
    }

    #[test]
    fn drop_ins_of_others_count_and_our_own_does_not() {
        let others = "# /etc/systemd/system/nginx.service.d/10-mine.conf\n[Service]\nExecStart=\nExecStart = /opt/nginx \\\n# why\n  -c /etc/n\n";
        let ours = "# /etc/systemd/system/nginx.service.d/50-towpath.conf\n[Service]\nExecStart=\nExecStart=/usr/bin/towpath run -- /old\n";
        let text = of(&format!("{NGINX}\n{others}\n{ours}"), "").unwrap();
        assert!(
            text.ends_with("[Service]\nExecStart=\nExecStart=/usr/bin/towpath run -- /opt/nginx  -c /etc/n\n"),
            "{text}"
        );
    }

    #[test]
    fn a_unit_that_may_execute_little_may_execute_towpath() {
        let text = of(NGINX, "NoExecPaths=/\n").unwrap();
        assert!(text.ends_with("\nExecPaths=/usr/bin/towpath\nExecPaths=/usr/lib/towpath\n"), "{text}");
        let odd = super::text("x.service", NGINX, &Facts::of(""), &["/a b/towpath".into()]);
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
            assert!(starts(&texts).iter().all(|start| !start.is_empty() && !start.contains('\n')));
        });
    }
}
