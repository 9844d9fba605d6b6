// PostgreSQL may miss a cancellation: the statement was on its way when it came. So it is sent again.

/** For how long, in milliseconds. */
const CANCEL_TIME = 2_000;
/** And what is between two of them. */
const CANCEL_PAUSE = 100;

module.exports = { CANCEL_PAUSE, CANCEL_TIME };
