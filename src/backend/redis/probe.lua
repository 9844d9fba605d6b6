-- Does once what an election does, on a key that no election has: who may not is refused at start.
-- KEYS: the key. ARGV: channel. Returns 1, or 0 if the user may not publish.
redis.call('SET', KEYS[1], 'probe', 'PX', 1000)
redis.call('GET', KEYS[1])
redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], 1000)
redis.call('TIME')
redis.call('DEL', KEYS[1])
local published = redis.pcall('PUBLISH', ARGV[1], 'probe')
return type(published) == 'number' and 1 or 0
