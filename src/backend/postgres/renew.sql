-- The row, if it is still this very term's, locked as an update of its other columns locks it: a transaction
-- that holds it with FOR KEY SHARE is not in the way.
WITH mine AS (
  SELECT l.election FROM $table AS l
  WHERE l.election = $election AND l.nonce = $nonce AND l.instance = $instance
    AND l.token = $token AND l.expires_at > '-infinity'
  FOR NO KEY UPDATE SKIP LOCKED
), kept AS (
  UPDATE $table AS l
  SET attempt = greatest(l.attempt, $attempt), expires_at = $until
  FROM mine WHERE l.election = mine.election
  RETURNING l.token
)
SELECT 'held' AS state, kept.token, NULL AS nonce, NULL AS instance, NULL AS remaining,
  pg_notify($channel, concat('alive ', kept.token, ' ', $millis, ' ', $election))::text AS told
FROM kept
UNION ALL
SELECT $state AS state, l.token, l.nonce, l.instance, $remaining, NULL
FROM $table AS l WHERE l.election = $election AND NOT EXISTS (SELECT FROM kept)
