-- Frees the lease if the record is this very term's. The last token stays.
-- KEYS: the lease. ARGV: owner, token, channel.
if redis.call('GET', KEYS[1]) ~= ARGV[2] .. ':' .. ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[3], 'free')
return 1
