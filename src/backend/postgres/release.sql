-- The row stays, so that its token goes on growing.
WITH mine AS (
  SELECT l.election FROM $table AS l
  WHERE l.election = $election AND l.nonce = $nonce AND l.instance = $instance
    AND l.token = $token AND l.expires_at > '-infinity'
  FOR NO KEY UPDATE SKIP LOCKED
), freed AS (
  UPDATE $table AS l
  SET attempt = greatest(l.attempt, $attempt), expires_at = '-infinity'
  FROM mine WHERE l.election = mine.election
  RETURNING l.token
)
SELECT 'held' AS state, freed.token, NULL AS nonce, NULL AS instance, NULL AS remaining,
  pg_notify($channel, concat('free ', $election))::text AS told
FROM freed
UNION ALL
SELECT $state AS state, l.token, l.nonce, l.instance, $remaining, NULL
FROM $table AS l WHERE l.election = $election AND NOT EXISTS (SELECT FROM freed)
