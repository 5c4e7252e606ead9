//! Programs on an interface's ingress hook (tcx), which a frame reaches after XDP and packet sockets and before netfilter.
//! Another program that lets a frame pass would end the hook, so ours are before all others.

use crate::steer_error::{DROP, EXCHANGING, OWN, SteerError, chain, explain, missing, os_error};
use aya::programs::links::FdLink;
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Btf, Ebpf};

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ingress {
    /// Keeps from the kernel what packet sockets have.
    Drop,
    /// Takes first SYNs before the kernel's firewall. It comes after the other, which notes them.
    Own,
}

impl Ingress {
    fn name(self) -> &'static str {
        match self {
            Self::Drop => DROP,
            Self::Own => OWN,
        }
    }

    /// The error of a step. Who asks for a firewall of his own learns what the kernel lacks for that.
    fn error(self, interface: &str, doing: &'static str, error: &(dyn std::error::Error + 'static)) -> SteerError {
        if self == Self::Drop {
            return explain(interface, doing, error);
        }
        let missing = format!("{doing}: {}", first_line(&chain(error)));
        SteerError::NotOwn { interface: interface.into(), missing }
    }

    /// The error of a kernel that does not know this kind of link.
    fn without_hook(self, interface: &str) -> SteerError {
        match self {
            Self::Drop => SteerError::NoIngressHook(interface.into()),
            Self::Own => {
                let missing = "this kernel has no tcx ingress hook (Linux 6.6 and newer have)".into();
                SteerError::NotOwn { interface: interface.into(), missing }
            }
        }
    }

    /// The program of the object, loaded, and its number.
    fn load<'a>(self, object: &'a mut Ebpf, interface: &str) -> Result<(&'a mut SchedClassifier, u32), SteerError> {
        let found = object.program_mut(self.name()).and_then(|found| <&mut SchedClassifier>::try_from(found).ok());
        let program = found.ok_or_else(|| missing(interface))?;
        if program.fd().is_err() {
            program.load().map_err(|error| self.error(interface, "loading the program of the ingress hook", &error))?;
        }
        let info = program.info().map_err(|error| explain(interface, "asking for the program", &error))?;
        let id = info.id();
        Ok((program, id))
    }

    /// Its place on the hook.
    fn order(self, object: &Ebpf, interface: &str) -> Result<LinkOrder, ProgramError> {
        let drop = object.program(DROP).and_then(|found| <&SchedClassifier>::try_from(found).ok());
        match drop.filter(|drop| self == Self::Own && drop.fd().is_ok()) {
            Some(drop) if Self::Drop.stands(interface, drop.info()?.id()) => LinkOrder::after_program(drop),
            _ => Ok(LinkOrder::first()),
        }
    }

    /// Puts the program of this object on the hook. Returns its number, too.
    pub fn attach(self, object: &mut Ebpf, interface: &str) -> Result<(FdLink, u32), SteerError> {
        let explain = |error: ProgramError| self.error(interface, "attaching to the ingress hook", &error);
        let place = TcAttachOptions::TcxOrder(self.order(object, interface).map_err(explain)?);
        let (program, number) = self.load(object, interface)?;
        let attached = program.attach_with_options(interface, TcAttachType::Ingress, place);
        let id = attached.map_err(|error| match os_error(&error) {
            Some(libc::EINVAL | libc::EOPNOTSUPP) => self.without_hook(interface),
            _ => explain(error),
        })?;
        let link = FdLink::try_from(program.take_link(id).map_err(explain)?);
        Ok((link.map_err(|_| self.without_hook(interface))?, number))
    }

    /// Puts the program of this object in the place of another object's. Returns its number, too.
    pub fn exchange(
        self,
        object: &mut Ebpf,
        interface: &str,
        link: FdLink,
    ) -> Result<(Option<FdLink>, u32), SteerError> {
        let explain = |error: &(dyn std::error::Error + 'static)| explain(interface, EXCHANGING, error);
        let link = SchedClassifierLink::try_from(link).map_err(|e| explain(&e))?;
        let (program, number) = self.load(object, interface)?;
        let id = program.attach_to_link(link).map_err(|e| explain(&e))?;
        let link = program.take_link(id).map_err(|e| explain(&e))?;
        Ok((FdLink::try_from(link).ok(), number))
    }

    /// Is the program with this number on the interface? Who may not ask (it takes CAP_SYS_ADMIN) believes so.
    pub fn stands(self, interface: &str, id: u32) -> bool {
        match SchedClassifier::query_tcx(interface, TcAttachType::Ingress) {
            Ok((_, programs)) => programs.iter().any(|program| program.id() == id),
            Err(error) => os_error(&error) == Some(libc::EPERM),
        }
    }

    /// The number of such a program on this interface, ours or another service's.
    pub fn attached(self, interface: &str) -> Option<u32> {
        let (_, programs) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress).ok()?;
        programs.iter().find(|program| program.name_as_str() == Some(self.name())).map(aya::programs::ProgramInfo::id)
    }
}

/// The verifier's log has many.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Where this kernel has the fields of its structures that [`Ingress::Own`] reads.
pub(crate) fn kernel_structures(interface: &str) -> Result<Btf, SteerError> {
    Btf::from_sys_fs().map_err(|_| {
        let missing = "this kernel does not say where its structures have what is read \
                       (/sys/kernel/btf/vmlinux, CONFIG_DEBUG_INFO_BTF)";
        SteerError::NotOwn { interface: interface.into(), missing: missing.into() }
    })
}
