//! Tests of the budget for replies that clients have not read.

use futures_util::FutureExt as _;
use futures_util::future::poll_fn;

use super::*;

/// A budget of 400 bytes: 100 per connection.
fn budget() -> ReplyBudget {
    ReplyBudget::new(400)
}

fn reserve(connection: &ConnectionBudget, bytes: usize) -> PendingReservation {
    connection.reserve(bytes)
}

fn reserve_now(connection: &ConnectionBudget, bytes: usize) -> Option<Reservation> {
    reserve(connection, bytes).now_or_never()
}

fn is_closed(connection: &ConnectionBudget) -> bool {
    poll_fn(|context| connection.poll_closed(context))
        .now_or_never()
        .is_some()
}

#[tokio::test]
async fn a_connection_has_a_quarter_of_the_budget() {
    let budget = budget();
    let connection = budget.add_connection();
    let mut first = reserve_now(&connection, 60).unwrap();
    let mut second = reserve(&connection, 41);
    assert!((&mut second).now_or_never().is_none());
    // A later, smaller reservation of the same connection does not overtake the second.
    let mut third = reserve(&connection, 1);
    assert!((&mut third).now_or_never().is_none());
    assert!(reserve_now(&budget.add_connection(), 100).is_some());
    first.shrink(59);
    drop(second.await);
    drop(third.await);
    assert!(reserve_now(&connection, 42).is_none());
    assert!(reserve_now(&connection, 41).is_some());
}

#[tokio::test]
async fn a_cancelled_wait_frees_its_reservation() {
    let connection = budget().add_connection();
    let first = reserve_now(&connection, 100).unwrap();
    let mut waiting = reserve(&connection, 50);
    assert!((&mut waiting).now_or_never().is_none());
    drop(first);
    // Now the reservation is granted, but the future was not polled again, so its caller does not have the reservation.
    drop(waiting);
    assert!(reserve_now(&connection, 100).is_some());
}

#[tokio::test]
async fn try_grow_needs_room_and_resize_does_not() {
    let budget = budget();
    let connection = budget.add_connection();
    let mut first = reserve_now(&connection, 10).unwrap();
    assert!(first.try_grow(100));
    assert!(!first.try_grow(101));
    first.resize(1_000);
    assert!(reserve_now(&budget.add_connection(), 100).is_none());
    assert!(reserve_now(&connection, 0).is_none());
    first.resize(100);
    assert!(reserve_now(&connection, 0).is_some());
}

#[tokio::test]
async fn the_connection_with_the_fewest_bytes_is_served_first() {
    let budget = budget();
    let connections = [(); 6].map(|()| budget.add_connection());
    let mut held: Vec<_> = connections[..4]
        .iter()
        .map(|connection| reserve_now(connection, 90))
        .collect();
    let own = reserve_now(&connections[4], 40).unwrap();
    let mut more = reserve(&connections[4], 50);
    let mut new = reserve(&connections[5], 50);
    assert!((&mut more).now_or_never().is_none());
    assert!((&mut new).now_or_never().is_none());
    // Connections without created replies are not stalled.
    sleep(STALL_TIMEOUT * 2).await;
    assert!(!connections.iter().any(is_closed));
    held.pop();
    assert!((&mut more).now_or_never().is_none());
    assert!((&mut new).now_or_never().is_some());
    drop(own);
    assert!((&mut more).now_or_never().is_some());
}

#[tokio::test]
async fn stalled_connections_are_closed_only_if_others_wait() {
    let budget = budget();
    let connections = [(); 6].map(|()| budget.add_connection());
    let held = connections[..4]
        .iter()
        .map(|connection| reserve_now(connection, 100).unwrap());
    let mut held: Vec<_> = held.collect();
    for reply in &mut held {
        reply.set_created(100);
    }
    sleep(STALL_TIMEOUT).await;
    for reply in &held[2..] {
        reply.record_progress();
    }
    held[1].shrink(90);
    assert!(!connections.iter().any(is_closed));
    let mut waiting = reserve(&connections[4], 100);
    assert!((&mut waiting).now_or_never().is_none());
    let closed = connections.iter().map(is_closed);
    assert_eq!(
        closed.collect::<Vec<_>>(),
        [true, false, false, false, false, false]
    );
    // The memory of one closed connection suffices for the waiting reservation.
    assert!(!is_closed(&connections[1]));
    let mut other = reserve(&connections[5], 100);
    assert!((&mut other).now_or_never().is_none());
    drop(held);
    assert!((&mut waiting).now_or_never().is_some());
    assert!((&mut other).now_or_never().is_some());
}

#[tokio::test]
async fn one_reply_may_be_larger_than_the_budget() {
    let budget = budget();
    let connections = [(); 3].map(|()| budget.add_connection());
    let mut large = reserve_now(&connections[0], 1_000).unwrap();
    let mut second = reserve(&connections[1], 101);
    assert!((&mut second).now_or_never().is_none());
    // Smaller replies do not wait for it.
    for connection in &connections {
        assert!(reserve_now(connection, 100).is_some());
    }
    large.set_created(1_000);
    sleep(STALL_TIMEOUT * 2).await;
    assert!(is_closed(&connections[0]));
    drop(large);
    drop(second.await);
    assert!(reserve_now(&connections[1], 500).is_some());
}

#[tokio::test]
async fn a_connection_without_room_does_not_hold_up_others() {
    let budget = budget();
    let [silent, reader] = [(); 2].map(|()| budget.add_connection());
    let mut own = reserve_now(&silent, 100).unwrap();
    own.set_created(100);
    let mut waiting = reserve(&silent, 1);
    assert!((&mut waiting).now_or_never().is_none());
    // `waiting` waits for its own client: no connection is closed for it, and others are served at once.
    let mut reply = reserve_now(&reader, 10).unwrap();
    assert!(reply.try_grow(100));
    assert!(!budget.state.lock().has_check_task);
    sleep(STALL_TIMEOUT * 2).await;
    assert!(!is_closed(&silent));
    drop(own);
    drop(waiting.await);
}

#[tokio::test]
async fn progress_of_one_reply_counts_for_its_connection() {
    let budget = budget();
    let connections = [(); 5].map(|()| budget.add_connection());
    let held = connections[..4]
        .iter()
        .map(|connection| [50, 50].map(|bytes| reserve_now(connection, bytes).unwrap()));
    let mut held: Vec<_> = held.collect();
    for reply in held.iter_mut().flatten() {
        reply.set_created(50);
    }
    sleep(STALL_TIMEOUT).await;
    for [first, _] in &held {
        first.record_progress();
    }
    let _waiting = reserve(&connections[4], 100);
    assert!(!connections.iter().any(is_closed));
}
