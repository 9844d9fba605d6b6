-- Takes the lease if it is free, or if it is this very candidate's already.
-- KEYS: the lease, the last token. ARGV: owner, duration in ms, channel, longest duration in ms, whether a lease
-- of its own may become shorter (no or yes).
-- Returns {1, token, ms} when taken, {0, record, ms} when not, {-1, token, 0} when tokens are used up.
local record = redis.call('GET', KEYS[1])
local last = redis.call('GET', KEYS[2])
last = last and tonumber(string.match(last, '^%d+$')) or 0
local duration = tonumber(ARGV[2])
if record then
  local token, owner = string.match(record, '^(%d+):(%x+:.+)$')
  local ms = redis.call('PTTL', KEYS[1])
  if owner ~= ARGV[1] then
    -- A lease always expires. One that does not, or not for years, was tampered with.
    if owner and (ms < 0 or ms > tonumber(ARGV[4])) then
      ms = duration
      redis.call('PEXPIRE', KEYS[1], ms)
    end
    return {0, record, ms}
  end
  last = math.max(last, tonumber(token))
  if ARGV[5] == 'no' and ms <= tonumber(ARGV[4]) then
    duration = math.max(duration, ms)
  end
end
-- Not lower than the time, so that tokens go on growing when the last one was lost.
local time = redis.call('TIME')
local token = math.max(last + 1, time[1] * 1000000 + time[2])
if token > 9007199254740991 then
  return {-1, string.format('%.0f', last), 0}
end
token = string.format('%.0f', token)
redis.call('SET', KEYS[2], token)
redis.call('SET', KEYS[1], token .. ':' .. ARGV[1], 'PX', duration)
-- Who may not publish may lead all the same.
redis.pcall('PUBLISH', ARGV[3], 'alive ' .. token .. ' ' .. duration)
return {1, token, duration}
