-- Drops what every group has done. KEYS: the stream. ARGV: ages in ms, for read records and for a topic without groups (-1: never).
-- Returns how many records went.

local SILENT_MS = 3600 * 1000

local function map(flat)
  local named = {}
  for index = 1, #flat, 2 do named[flat[index]] = flat[index + 1] end
  return named
end

local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])

local age = tonumber(#groups > 0 and ARGV[1] or ARGV[2])
if age < 0 then return 0 end
local ms, seq = now - age, 0 -- the first id to stay

for _, flat in ipairs(groups) do
  local group = map(flat)
  local group_ms, group_seq = parts(group['last-delivered-id'])
  group_seq = group_seq + 1
  if group['pending'] > 0 then
    group_ms, group_seq = parts(redis.call('XPENDING', KEYS[1], group['name'])[2])
  end
  if group_ms < ms or (group_ms == ms and group_seq < seq) then ms, seq = group_ms, group_seq end

  for _, listed in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group['name'])) do
    local member = map(listed)
    if member['pending'] == 0 and member['idle'] > SILENT_MS then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], group['name'], member['name'])
    end
  end
end

return redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f-%.0f', math.max(ms, 0), seq))
