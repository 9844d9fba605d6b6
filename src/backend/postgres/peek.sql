SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE $state END AS state,
  l.token, l.nonce, l.instance, $remaining AS remaining
FROM (SELECT) AS always LEFT JOIN $table AS l ON l.election = $election
