//! Assigns traffic series to clusters. Pure; owned by [`crate::routing`].

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use yoke_api::ClusterId;

use super::series::Series;

/// Assigns series to clusters, up to a limit.
#[derive(Debug)]
pub struct SeriesRegistry {
    limit: usize,
    /// Series of clusters; alive while a snapshot that is in use contains them.
    own: HashMap<ClusterId, Weak<Series>>,
    other: Arc<Series>,
}

impl SeriesRegistry {
    /// Creates a registry in which `limit` clusters have their own series; the others share one.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            own: HashMap::new(),
            other: Arc::default(),
        }
    }

    /// The series of a cluster. A cluster that shares series gets its own on a later call, when one
    /// is free.
    pub fn series_of(&mut self, id: &ClusterId) -> Arc<Series> {
        if let Some(series) = self.own.get(id).and_then(Weak::upgrade) {
            return series;
        }
        if self.own.len() >= self.limit {
            self.own.retain(|_, series| series.strong_count() > 0);
        }
        if self.own.len() >= self.limit {
            return Arc::clone(&self.other);
        }
        let series = Arc::default();
        self.own.insert(id.clone(), Arc::downgrade(&series));
        series
    }

    /// The shared series.
    pub fn other(&self) -> &Arc<Series> {
        &self.other
    }
}
