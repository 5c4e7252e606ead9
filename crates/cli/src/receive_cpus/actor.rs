//! Carries out decisions, or only observes.

use std::path::PathBuf;
use towpath_rxcpus::{Effect, Journal, JournalError, Knob, Pool, Restored, Shape, Tree};

/// Carries out decisions.
pub trait Actor {
    /// Changes the number of reserved CPUs.
    fn set(&mut self, pool: &mut Pool, from: u32, to: u32) -> Result<(), String>;
    /// Checks in every tick whether the device has changed, or another program has changed a setting.
    fn look(&mut self, pool: &mut Pool) -> Result<(), String>;
    /// Settings that other programs have changed so far.
    fn drifted(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Changes nothing.
pub struct Observer;

impl Actor for Observer {
    fn set(&mut self, _: &mut Pool, _: u32, _: u32) -> Result<(), String> {
        Ok(())
    }
    fn look(&mut self, _: &mut Pool) -> Result<(), String> {
        Ok(())
    }
}

/// Makes the changes.
pub struct Enforcer {
    tree: Tree,
    boot_id: String,
    /// The path of the journal.
    place: PathBuf,
    journal: Option<Journal>,
    /// Settings that another program has changed. Each is set again once, and then left alone.
    asserted: Vec<String>,
    /// Reserved CPUs.
    cores: u32,
    /// The device's parts when everything was set.
    shape: Option<Shape>,
    effect: Effect,
}

impl Enforcer {
    /// An enforcer that has changed nothing yet.
    pub fn new(tree: Tree, boot_id: String, place: PathBuf) -> Self {
        let (asserted, effect) = (Vec::new(), Effect::default());
        Self { tree, boot_id, place, journal: None, asserted, cores: 0, shape: None, effect }
    }

    /// Puts everything back.
    pub fn put_back(&mut self) -> Result<Vec<Restored>, String> {
        (self.journal, self.shape, self.effect) = (None, None, Effect::default());
        let restored = Journal::restore(&self.place, &self.tree, &self.boot_id).map_err(|error| error.to_string())?;
        Ok(restored.unwrap_or_default())
    }

    /// Sets everything for the present number of CPUs. If an interrupt refuses to move, the next way is taken.
    fn install(&mut self, pool: &mut Pool, from: u32) -> Result<(), String> {
        loop {
            let plan = pool.plan(from, self.cores).map_err(|error| error.to_string())?;
            let journal = match &mut self.journal {
                Some(journal) => journal,
                none => none.insert(Journal::create(&self.place, &self.boot_id).map_err(|error| error.to_string())?),
            };
            match journal.apply(&self.tree, &plan.knobs) {
                Ok(()) => {
                    journal.release(&self.tree, &plan.knobs);
                    self.effect.sent(&self.tree, &plan.knobs);
                    pool.refresh(&self.tree);
                    self.shape = Some(Shape::of(&self.tree, &pool.interface));
                    return Ok(());
                }
                Err(error) => match refusing_irq(&error).filter(|irq| pool.refused.insert(*irq)) {
                    Some(irq) => crate::complain(&format!("{error}: interrupt {irq} is left alone, in another way")),
                    None => return Err(error.to_string()),
                },
            }
        }
    }

    /// Why everything must be set again: interrupts that did not move, or a device with other parts.
    fn change(&mut self, pool: &mut Pool) -> Option<String> {
        let refused: Vec<u32> =
            self.effect.refused(&self.tree).into_iter().filter(|irq| pool.refused.insert(*irq)).collect();
        if !refused.is_empty() {
            return Some(format!("interrupts {refused:?} come where they came before: left alone, in another way"));
        }
        let now = Shape::of(&self.tree, &pool.interface);
        let before = self.shape.as_ref()?;
        (now != *before).then(|| format!("{} has changed: everything is set again", pool.interface.name))
    }
}

fn refusing_irq(error: &JournalError) -> Option<u32> {
    match error {
        JournalError::Undone(error) => error.refusing_irq(),
        _ => None,
    }
}

impl Actor for Enforcer {
    fn set(&mut self, pool: &mut Pool, from: u32, to: u32) -> Result<(), String> {
        self.cores = to;
        if to == 0 {
            return self.put_back().map(drop);
        }
        pool.refresh(&self.tree);
        self.install(pool, from)
    }

    fn drifted(&self) -> Vec<String> {
        self.asserted.clone()
    }

    fn look(&mut self, pool: &mut Pool) -> Result<(), String> {
        // Without the device there is nothing to do.
        if self.journal.is_none() || !pool.refresh(&self.tree) {
            return Ok(());
        }
        if let Some(what) = self.change(pool) {
            crate::complain(&what);
            let another =
                self.shape.as_ref().is_some_and(|shape| shape.index != Shape::of(&self.tree, &pool.interface).index);
            if another {
                // The journal is of the device that had the name before.
                self.put_back()?;
            }
            if let Err(error) = self.install(pool, self.cores) {
                // The device may be on its way down, or up. The next change is another chance.
                crate::complain(&error);
                self.shape = Some(Shape::of(&self.tree, &pool.interface));
            }
            return Ok(());
        }
        let Some(journal) = &mut self.journal else { return Ok(()) };
        for (path, ours, theirs) in journal.drifted(&self.tree) {
            if self.asserted.contains(&path) {
                continue;
            }
            crate::complain(&format!("{path} was {ours} and is {theirs} now: set again, once"));
            self.asserted.push(path.clone());
            if let Err(error) = journal.apply(&self.tree, &[Knob::new(path, ours, "")]) {
                crate::complain(&error.to_string());
            }
        }
        Ok(())
    }
}
