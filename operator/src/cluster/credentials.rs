//! Keys and certificates of a control plane: persisted, distributed to its namespace, and fenced.

pub(crate) mod distribute;
pub(crate) mod fencing;
pub(crate) mod persisted;
pub(crate) mod retained_stores;
