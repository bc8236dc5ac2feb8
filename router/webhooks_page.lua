-- Those that wait or are dead. ARGV: prefix, '', list ('webhooks' or 'webhooks:dead'), after so many, most
-- Returns {name, when (due, or dead since), owed, attempts, tried, endpoint, url, type, seen}...
local rows = {}
local from = tonumber(ARGV[4])
local found = redis.call('ZRANGE', P .. ARGV[3], from, from + tonumber(ARGV[5]) - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local h = redis.call('HMGET', P .. 'webhook:' .. found[i], 'owed', 'attempts', 'tried', 'endpoint', 'url', 'type', 'seen')
  if h[1] then
    rows[#rows + 1] = {found[i], whole(found[i + 1]), h[1], h[2], h[3] or '', h[4], h[5], h[6], h[7] or ''}
  else
    redis.call('ZREM', P .. ARGV[3], found[i])
  end
end
return rows
