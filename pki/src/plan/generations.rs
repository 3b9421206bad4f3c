//! Generations of a cluster's CAs. A generation never changes its key.

use std::collections::BTreeSet;
use std::fmt;

use super::error::PlanError;

/// Number of a generation of a cluster's CAs, starting at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u32);

/// The generations that exist, and the one that signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generations {
    signing: Generation,
    all: BTreeSet<Generation>,
}

impl Generation {
    /// The first generation.
    pub const FIRST: Self = Self(1);

    /// The generation with this number.
    pub fn new(number: u32) -> Result<Self, PlanError> {
        if number == 0 {
            Err(PlanError::Generation)
        } else {
            Ok(Self(number))
        }
    }

    /// Number of the generation.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl Generations {
    /// `signing` signs certificates. `others` exist and are trusted: the previous generation, or
    /// the next one before it signs.
    pub fn new(signing: Generation, others: impl IntoIterator<Item = Generation>) -> Self {
        let mut all: BTreeSet<_> = others.into_iter().collect();
        all.insert(signing);
        Self { signing, all }
    }

    /// Only the first generation.
    pub fn first() -> Self {
        Self::new(Generation::FIRST, [])
    }

    /// The generation that signs certificates.
    pub fn signing(&self) -> Generation {
        self.signing
    }

    /// All generations, oldest first.
    pub fn all(&self) -> impl Iterator<Item = Generation> {
        self.all.iter().copied()
    }
}
