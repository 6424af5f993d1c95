//! The reason codes of C6: what each means for the status and what an operator should do.

use super::snapshot::Status;

/// One reason code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Machine-readable code.
    pub code: &'static str,
    /// Status that goes with it.
    pub status: Status,
    /// What to do.
    pub advice: &'static str,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $status:ident $code:literal, $advice:literal;)*) => {
        $($(#[$doc])* pub const $name: Reason =
            Reason { code: $code, status: Status::$status, advice: $advice };)*
        /// Every code there is.
        pub const ALL: &[Reason] = &[$($name),*];
    };
}

reasons! {
    /// Copying, or caught up.
    RUNNING = Running "", "";
    /// First connection is being made.
    CONNECTING = Starting "connecting", "";
    /// A request of a lost connection may still arrive.
    SETTLING = Starting "settling", "";
    /// Both ends are being read and compared.
    RESUMING = Starting "resuming", "";
    /// Upstream cluster does not answer.
    UPSTREAM_UNREACHABLE = Degraded "upstream_unreachable",
        "bring the upstream cluster back or correct its address; retried by itself";
    /// Destination cluster does not answer.
    DESTINATION_UNREACHABLE = Degraded "destination_unreachable",
        "bring the destination cluster back or correct its address; retried by itself";
    /// The cluster refuses the login.
    LOGIN_REFUSED = Degraded "login_refused",
        "correct the user, password or token of the cluster; retried by itself";
    /// M14.
    UNTESTED_SERVER = Degraded "untested_server",
        "run a 0.9.x server or set allow_untested_server = true on the cluster";
    /// The user lacks a permission.
    UNAUTHORIZED = Degraded "unauthorized",
        "grant the user read on the upstream topic and write on the destination topic";
    /// The upstream topic or partition is not there, or its log answers less than it held.
    WAITING_UPSTREAM = Degraded "waiting_upstream",
        "wait, or see whether the upstream topic was deleted or its server is still starting";
    /// The destination topic or partition is not there.
    WAITING_DESTINATION = Degraded "waiting_destination",
        "create the destination topic with as many partitions as upstream, or set \
         auto_create = true";
    /// The destination answers less than it acked; it may be starting.
    DESTINATION_NOT_READY = Degraded "destination_not_ready",
        "wait: the destination is read again until its end is stable";
    /// The destination refuses for now.
    NOT_ACCEPTED = Degraded "not_accepted",
        "see whether the destination cluster has a leader; retried by itself";
    /// Nothing moved for `degraded_after`.
    STALLED = Degraded "stalled", "see the destination's load and the last error";
    /// G6: partitions appeared that the buffers were not made for.
    BUFFERS_SHORT = Running "buffers_short",
        "raise max_buffered_bytes to the value named, or lower shards, and restart; until then the \
         feeds of this shard read in small pieces and memory may pass the bound";
    /// S3.
    DISK_FULL = Degraded "disk_full", "free space in state_dir; resumes by itself";
    /// S3.
    SAVE_FAILED = Degraded "save_failed",
        "see the error and the disk under state_dir; retried with a new file";
    /// M5, policy `fail`.
    OFFSET_EXPIRED = Error "offset_expired",
        "retention was faster than the copy; set on_offset_expired = \"earliest_available\" and \
         restart to go on behind the gap";
    /// M5, policy `fail`.
    HISTORY_CHANGED = Error "history_changed",
        "the upstream topic is another one; set on_history_changed = \"restart\" and restart to \
         copy it from its first message";
    /// M6: never papered over.
    DIVERGED = Error "diverged",
        "somebody else writes to the destination partition, or it lost messages in the middle; \
         find out who, then restore the destination, or stop the daemon and run `tidegate state \
         reset --source … --topic … --partition …`";
    /// M6, policy `fail`.
    DESTINATION_LOST = Error "destination_lost",
        "the destination topic was deleted or replaced; restore it, or set \
         on_destination_lost = \"refill\" and restart to copy everything again, or run `tidegate \
         state reset --source … --topic … --partition …` to begin anew";
    /// M6, policy `fail`.
    NONEMPTY_DESTINATION = Error "nonempty_destination",
        "the destination has messages and there is no saved position; set \
         on_nonempty_destination = \"append\" or empty it";
    /// M15, policy `fail`.
    BAD_RECORD = Error "bad_record",
        "the message at this offset cannot be copied; remove it upstream, or stop the daemon, run \
         `tidegate state reset --source … --topic … --partition …` and begin behind it with \
         initial_offset";
    /// M8, policy `fail`.
    MISSING_UPSTREAM = Error "missing_upstream",
        "create the upstream topic, or set on_missing_upstream = \"wait\", and restart";
    /// The destination refuses to create or grow a topic.
    CREATE_REFUSED = Degraded "create_refused",
        "create the destination topic by hand with as many partitions as upstream, or correct \
         what the server names; retried by itself";
    /// S2, policy `fail`.
    STATE_UNREADABLE = Error "state_unreadable",
        "restore the state file from a backup, rebuild it, or set on_corrupt_state = \"reset\" \
         and restart";
    /// Drained.
    DRAINED = Stopped "drained", "";
    /// Draining.
    DRAINING = Stopping "draining", "";
}
