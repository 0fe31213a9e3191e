//! The shards of the same tables: which of them can be used instead of one that is gone, and how that one is found again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::connect::Connector;

/// Pause after a call of [`Connector::connect`] that failed.
const PAUSE: Duration = Duration::from_millis(500);

impl Connector {
    /// Sets the connectors of all shards, this one included.
    pub(crate) fn set_peers(&self, peers: Vec<Weak<Self>>) {
        *self.peers.write() = peers;
    }

    /// Records that the server could not be reached, or has not replied, within `reconnect_timeout`. A server among shards is
    /// tried again until it can be reached.
    pub(crate) fn set_unreachable(&self) {
        self.failover.is_unreachable.store(true, Ordering::SeqCst);
        let own = {
            let peers = self.peers.read();
            let mut peers = peers.iter().filter_map(Weak::upgrade);
            peers.find(|peer| std::ptr::eq(&raw const **peer, self))
        };
        if let Some(own) = own {
            own.connect_later();
        }
    }

    /// Returns the connector of another shard that can probably be reached: the first one after this, in a circle.
    pub(crate) fn reachable_peer(&self) -> Option<Arc<Self>> {
        let peers = self.peers.read();
        let peers: Vec<_> = peers.iter().filter_map(Weak::upgrade).collect();
        let own = (peers.iter()).position(|peer| std::ptr::eq(&raw const **peer, self))?;
        let others = peers[own + 1..].iter().chain(&peers[..own]);
        let mut reachable = others.filter(|peer| peer.failover.is_reachable() && !peer.is_closed());
        reachable.next().cloned()
    }

    /// Connects as soon as possible, so that the server deletes the moved items and is used again.
    pub(crate) fn connect_later(self: &Arc<Self>) {
        if self.failover.is_probing.swap(true, Ordering::SeqCst) {
            return;
        }
        let connector = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(connector) = connector.upgrade() {
                if connector.is_closed() || connector.connect(Instant::now()).await.is_ok() {
                    let failover = &connector.failover;
                    failover.is_probing.store(false, Ordering::SeqCst);
                    // A call that began before may have failed since then, without starting this loop again.
                    let is_done = connector.is_closed() || failover.is_reachable();
                    if is_done || failover.is_probing.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
                drop(connector);
                sleep(PAUSE).await;
            }
        });
    }
}
