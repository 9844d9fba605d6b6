-- The row, if it may be had: its lease has expired, or an earlier attempt of this very owner won it and the
-- answer got lost. It is locked for a change of its key, so that whoever holds it with FOR KEY SHARE is
-- waited for: by asking again, since a statement that waits would hold up all others of its connection, and
-- might win when nobody waits for it any more. A row that is not to be had is not locked.
WITH free AS (
  SELECT l.election FROM $table AS l
  WHERE l.election = $election
    AND (l.expires_at <= clock_timestamp() OR (l.nonce = $nonce AND l.instance = $instance))
    -- An attempt that was overtaken by a later one of the same owner comes too late.
    AND NOT (l.nonce = $nonce AND l.instance = $instance AND $late)
    AND l.token BETWEEN 1 AND $last_token - 1
  FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE $table AS l
  SET instance = $instance, nonce = $nonce, attempt = $attempt,
      token = greatest(l.token + 1, $floor),
      expires_at = $until
  FROM free WHERE l.election = free.election
  RETURNING l.token
), made AS (
  INSERT INTO $table (election, instance, nonce, attempt, token, expires_at)
  SELECT $election, $instance, $nonce, $attempt, $floor, clock_timestamp() + $duration
  WHERE NOT EXISTS (SELECT FROM $table AS l WHERE l.election = $election)
  ON CONFLICT (election) DO NOTHING
  RETURNING token
), won AS (
  SELECT token FROM taken UNION ALL SELECT token FROM made
)
SELECT 'held' AS state, won.token, NULL AS nonce, NULL AS instance, NULL AS remaining,
  pg_notify($channel, concat('alive ', won.token, ' ', $millis, ' ', $election))::text AS told
FROM won
UNION ALL
SELECT $state AS state, l.token, l.nonce, l.instance, $remaining, NULL
FROM $table AS l WHERE l.election = $election AND NOT EXISTS (SELECT FROM won)
