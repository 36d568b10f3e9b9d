"""What a page says after a change. Links name a notice, so that nobody can put a text of theirs into a page."""

NOTICES = {
    "cancelled": "The chain was cancelled.",
    "not-cancelled": "Nothing was cancelled: the chain was closed already.",
    "retried": "The chain was retried: its last job is due.",
    "retried-together": "The chain was retried with what failed with it: their last jobs are due when their blockers "
    "are closed.",
    "deleted": "The chain was deleted.",
    "completed": "The chain was completed with your output.",
    "event-sent": "The event was sent to the chain.",
    "event-not-sent": "This form has sent its event already, and sends no second one: open it again to send another.",
    "changed": "The waiting job was changed.",
    "selected-retry": "The selected chains were retried.",
    "selected-cancel": "The selected chains were cancelled.",
    "selected-delete": "The selected chains were deleted.",
    "triggered": "The job is due now.",
    "paused": "The job type is paused: workers claim none of its jobs.",
    "resumed": "The job type is resumed.",
    "level-set": "The event level was set. It applies from now on.",
    "schedule-paused": "The schedule is paused.",
    "schedule-resumed": "The schedule is resumed.",
    "schedule-run": "The schedule was run now.",
    "schedule-run-before": "This form has started this chain already, and starts no second one: read the page of the "
    "schedules again to run it once more.",
    "schedule-deleted": "The schedule was deleted. A worker whose code has it stores it again when it starts.",
    "webhook-enabled": "The webhook is enabled. It gets what happens from now on.",
    "webhook-disabled": "The webhook is disabled.",
    "webhook-pinged": "A worker will send a ping.",
    "webhook-replayed": "Workers deliver again.",
    "operation-started": "The operation was started. Workers carry it out.",
}
