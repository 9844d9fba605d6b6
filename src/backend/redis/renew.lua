-- Extends the lease if the record is this very term's.
-- KEYS: the lease. ARGV: owner, duration in ms, channel, token, whether it may become shorter (no or yes).
-- Returns {1, token, ms} when extended, {0, record, ms} when not; no record is an empty one.
local record = redis.call('GET', KEYS[1])
if record ~= ARGV[4] .. ':' .. ARGV[1] then
  return {0, record or '', record and redis.call('PTTL', KEYS[1]) or 0}
end
local ms = tonumber(ARGV[2])
if ARGV[5] == 'no' then
  ms = math.max(ms, redis.call('PTTL', KEYS[1]))
end
redis.call('PEXPIRE', KEYS[1], ms)
redis.pcall('PUBLISH', ARGV[3], 'alive ' .. ARGV[4] .. ' ' .. ms)
return {1, ARGV[4], ms}
